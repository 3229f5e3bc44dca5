"""What the supervisors of one job tell each other, so that there is one verdict over all nodes."""
