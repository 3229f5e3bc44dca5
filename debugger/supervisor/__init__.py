"""The supervisor of a run, outside the ranks: starts the command, watches it, takes stacks and ends
it."""
