"""What this host's system says: of the ranks' processes, its memory, its devices and sockets."""
