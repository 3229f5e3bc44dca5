"""What the ranks print: drained, kept and shown by a process of its own."""
