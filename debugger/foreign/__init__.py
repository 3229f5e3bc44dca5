"""Records that others wrote, such as torch's flight recorder: read without trust, and judged."""
