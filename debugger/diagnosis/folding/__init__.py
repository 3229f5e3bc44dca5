"""Consequences are folded into the finding that explains them: a cause is reported once."""
