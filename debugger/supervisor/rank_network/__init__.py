"""The ranks' own network, where a run has one: its namespaces, and the switch between them."""
