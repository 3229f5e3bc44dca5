"""The base that everything else here builds on: bytes, reductions, deadlines, the store's type."""
