"""The widgets: two that show lines, and functions that make lines out of data."""
