"""Ranks compare a call before it is made (level DETAIL), and ask each other where they are."""
