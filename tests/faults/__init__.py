"""Every fault that can be made to happen, and what is said of it."""
