"""What a rank puts on record: which call, from which line, in which group; what it waits for."""
