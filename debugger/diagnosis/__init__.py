"""From a snapshot to findings: pure functions, without I/O, threads or a clock of their own."""
