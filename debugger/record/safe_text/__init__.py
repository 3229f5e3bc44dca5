"""The text that may be kept and shown: no secrets, and nothing that a terminal or a CI system
obeys."""
