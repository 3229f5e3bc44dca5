"""Bootstrap: the ranks of a group find each other, prove who they are, and connect."""
