"""Looks at a job that was started without this tool: reads, and changes nothing."""
