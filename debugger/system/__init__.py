"""The operating system's view of processes, memory and sockets. Standard library only."""
