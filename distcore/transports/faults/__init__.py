"""Connections that go wrong on purpose, for tests and for fault injection."""
