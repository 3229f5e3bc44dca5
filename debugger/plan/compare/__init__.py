"""Two runs of a program, or a run and a plan of it, call by call: where they differ first."""
