"""Faults on purpose (`--inject`): when one is due in this rank, and how it is done."""
