"""`--check replicas`: parameters that ought to be equal on all ranks, compared after each step."""
