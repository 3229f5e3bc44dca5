"""The code in a planned rank, and in the process that its ranks are forked from."""
