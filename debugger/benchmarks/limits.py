"""The limits of time of what `distdebug bench` starts."""

SILENCE_S = 300.0
"""How long a measuring program may give no figure."""
END_S = 10.0
"""How long ranks may take to end when all is measured."""
DEATH_S = 0.5
"""How long the others are waited for where one rank has failed: one of them may say why."""
START_S = 60.0
"""How long mpiexec and its ranks may take to start."""
BUDGET_S = 120.0
"""How long `bench comm` may take by default."""
TURN_S = (0.005, 0.03)
"""The shortest and the longest that one turn of one way is meant to take."""
WARM_UP_BELOW_S = 0.02
DAY_S = 86_400
