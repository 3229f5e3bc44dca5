"""The backend "tcp": our own algorithms over TCP, and over shared memory within a host."""
