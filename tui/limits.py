"""The limits of time of the app: its looks at a run, and how long what it shows holds."""

EVERY_S = 0.25
"""How often a run that lives is looked at, and whether the terminal is still there."""
OVER_EVERY_S = 0.5
"""The same of a run that is over."""
SMALL_S = 0.02
"""A diagnosis that takes longer is not made at every look."""
FAR_ALIVE_NS = 10_000_000_000
"""A run on another host lives while a heartbeat is younger than this."""
NOTICE_NS = 15_000_000_000
"""A supervisor's notice is shown for so long: it repeats those that hold every ten seconds."""
LATE_AFTER_NS = 1_000_000_000
"""Others have waited this long for a rank before it is called late."""
