"""Faults on purpose: what is to go wrong, where and when, and what of it happened."""
