"""The limits of time of the pytest plugin, for a test's ranks and the server that forks them."""

TIMEOUT_S = 60.0
"""Of a test that was given no timeout."""
RUN_TIMEOUT_S = 120.0
"""Of a command that the fixture `distdebug_run` starts."""
END_S = 30.0
"""How long a command, or the server's ranks, may take to be gone when they were killed."""
RAISE_GRACE_S = 6.0
"""How long a rank that has got a finding may take to come to the end of its body."""
FAILED_GRACE_S = 5.0
"""How long the others may go on where one has failed, and none of them waits for it: what they say
of the same failure counts as much, and where tests run side by side they may be given no core."""
TEARDOWN_S = 10.0
"""How much longer than its timeout a test may take to tear its fixtures down."""
LATE_S = 0.5
"""At the test's timeout, a rank that others wait for by this much is named."""
READY_S = 300.0
"""How long the server may take to import torch, on a host that runs tests side by side."""
START_S = 60.0
"""How long it may take to fork the ranks of a test."""
