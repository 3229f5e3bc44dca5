"""Engines run a group's calls: their queue, their handles, the life and the end of a group."""
