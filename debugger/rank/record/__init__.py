"""The record of a rank: each call, its line and its group; what the rank waits for."""
