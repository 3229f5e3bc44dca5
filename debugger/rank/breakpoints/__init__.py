"""Breakpoints: where a rank stops, and the prompt through which one talks to it."""
