"""Limits that mean the same in several rooms: how often is looked, what is more than any run has.

Each room has a `limits.py` of its own for those that are its alone.
"""

POLL_EVERY_S = 0.05
"""How often is asked for what somebody waits for and nothing announces: the end of a process, an
answer in a file, a line that was added."""
LOOK_EVERY_S = 0.2
"""How often is looked for what may come at any time, and is urgent for nobody: a debugger that
connects, a node that is started late, what orphans of a run still print."""
MOST_S = 1e9
"""Thirty years, which is never: what is longer cannot be slept."""
LATEST_S = (1 << 33) - 1
"""The latest time of a file in an artefact, in seconds since 1970: what the form of the archive has
room for."""
MOST_RANKS = 1 << 17
"""The most ranks of a world, or a group. What claims more is damaged, malicious, or no number of a
rank."""
SHOWN_RANKS = 128
"""The most ranks of a finding, or of a call, that are shown one by one, culprits first."""
