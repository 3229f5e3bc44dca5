"""Limits: how far apart the dumps of one job are, how long a job is without a call; of stacks."""

from __future__ import annotations

LAGS_NS = 10**9
"""A recorder finds a call complete, or puts it away, up to this much later than it is. So before
the first aborted call is found complete others may have been, in the order of looking."""
EARLIER_RUN_S = 60.0
"""Calls, and files, that are older by so much are of an earlier run;"""
COPIED_EARLIER_RUN_S = 3600.0
"""calls by so much where all files were written together, as copies are."""
CLOCKS_APART_S = 5.0
"""So far the clock of a file system may be behind that of the rank that writes to it."""
AT_WORK_S = 5.0
"""Calls that were younger than this when the dump was written are a job at work; or twice as long
as it has been without a call, or in one, more than once, up to a minute and a call's timeout."""
MOST_LEVELS = 3
"""So many of the user's frames tell from where a call comes."""
