"""The limits of time of what `distdebug bench` and `distdebug shrink` start."""

SILENCE_S = 300.0
"""How long a measuring program may give no figure."""
END_S = 10.0
"""How long ranks may take to end when all is measured."""
TURN_S = (0.005, 0.03)
"""The shortest and the longest that one turn of one way is meant to take."""
WARM_UP_BELOW_S = 0.02
SHRINK_S = 60.0
"""How long the programs of a run are made smaller."""
CONFIRM_HANG_S = 10.0
"""The hang timeout of a small program: its ranks do nothing for longer than a second but start."""
