"""DistributedDataParallel: how a model was made, its times, and its unused parameters."""
