"""The directory of a run; the runs below one folder; one file of a run, and back; its logs."""
