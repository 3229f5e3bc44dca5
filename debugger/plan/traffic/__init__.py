"""What the ranks of a run, or of a plan, send: calls and bytes by group, op and step, and the time
that links of a given latency and bandwidth would need for them."""
