"""A rank's log: JSON lines with rank, step and level, from torch, Python and the user."""
