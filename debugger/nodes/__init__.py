"""The messages between the supervisors of one job, so that there is one verdict over all nodes."""
