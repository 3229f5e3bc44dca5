"""The stacks of all ranks: taken from outside, merged, and read."""
