"""What everything else here builds on: bytes, reductions, deadlines, and the store as a type."""
