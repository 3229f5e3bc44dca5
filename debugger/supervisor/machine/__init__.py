"""The view of this host's system: the ranks' processes, its memory, its devices and sockets."""
