"""The way from flight records to snapshots: live, finished, torn or foreign ones."""
