"""The traffic of the ranks of a run, or of a plan: calls and bytes by group, op and step, and the
time that links of a given latency and bandwidth would need for them."""
