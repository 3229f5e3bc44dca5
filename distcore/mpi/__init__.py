"""The backend "mpi": torch.distributed over whatever MPI library mpi4py finds."""
