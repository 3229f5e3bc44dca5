"""Facts follow from a snapshot, and several rules need them: who waits, who lives, who did what."""
