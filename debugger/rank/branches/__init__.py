"""Keeps which branches of the user's own code a rank takes between its calls."""
