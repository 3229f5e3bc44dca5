"""What follows from a snapshot, and several rules need: who waits, who lives, who did what."""
