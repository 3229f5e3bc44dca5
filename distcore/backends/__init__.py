"""The backends that distcore registers with torch.distributed."""
