"""Where everything of a run lies; the runs below one folder; one file of a run, and back."""
