"""The limits of a plan: of its clock, and of what is kept and shown."""

from __future__ import annotations

TICK_NS = 1000
"""The time that each step of a simulation takes."""
LASTED_S = 1e6
"""Between the last event and the look: longer than the bytes of any call may take."""
NEVER_S = 1e8
"""Nobody is late in a plan: who has not come does not come."""
MOST_READ = 4096
"""The most characters that are read of what a rank wrote."""
MOST_PERIODS = 48
"""The most lengths of a step that are tried: those by which most calls come again."""
MOST_STATES = 20_000
"""The most states of a plan that are kept while its orders are looked at."""
MOST_BACK = 16
"""So many calls of a group are looked back over for one of another thread that may come later."""
ORDERS_S = 200.0
"""The time in which the orders of a plan are looked at."""
