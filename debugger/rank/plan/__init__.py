"""What runs in a planned rank, and the process that its ranks are forked from."""
