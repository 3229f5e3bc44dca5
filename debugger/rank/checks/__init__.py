"""What is looked at before a call reaches the backend: its data, its memory, its buffers."""
