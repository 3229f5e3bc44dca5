"""How a group's calls are run: their queue, their handles, the life and the end of a group."""
