"""The output of the ranks: drained, kept and shown by a process of its own."""
