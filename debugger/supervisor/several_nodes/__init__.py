"""The job that a run is a part of: with the supervisors of its other nodes there is one verdict."""
