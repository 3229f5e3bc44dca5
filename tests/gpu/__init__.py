"""What `make gpu` runs on a machine with one NVIDIA GPU: parts in order, each with a limit."""
