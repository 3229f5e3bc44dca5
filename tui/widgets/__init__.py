"""What draws: two widgets that show lines, and functions that make lines out of data."""
