"""One cause is one finding: consequences are folded into the finding that explains them."""
