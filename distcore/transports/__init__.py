"""Messages between the ranks of one group: over TCP, shared memory, or within one process."""
