"""The connections between all ranks of a group, as its collectives use them."""
