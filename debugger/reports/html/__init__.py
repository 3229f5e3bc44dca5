"""The report as one HTML file: its contents, and how they are written."""
