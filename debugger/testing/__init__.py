"""The pytest plugin: tests whose bodies run in every rank, and runs whose verdict is asserted."""
