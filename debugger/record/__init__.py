"""The run directory and what lies in it: the one interface between ranks and everything else."""
