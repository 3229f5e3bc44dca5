"""The report as one HTML file: what is in it (`contents`, `calls`), and how it is written (`page`)."""
