"""Checks of a call before it reaches the backend: its data, its memory, its buffers."""
