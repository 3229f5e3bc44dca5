"""The limits of time of what runs in a rank.

What means the same is one here, in whichever part it is needed.
"""

IN_CALL_S = 1.0
"""So long the caller waits for the others, within the call: where they come, its own thread makes
it, and what they or the backend refuse is raised by the call, as in stock, not by `wait()`. Whether
they come or not, it goes on then (`layout.BOUNDED_FLAG` says so on record)."""
SHORT_IN_CALL_S = 0.005
"""So long, where they did not come in time: they may wait for what this rank does next."""
MOST_IN_VAIN_S = 3.0
"""So long in all the calls of one group have waited for others that did not come."""
JOIN_S = 30.0
"""How long ranks are awaited that did not choose DETAIL, or not yet. With `IN_CALL_S` below
`layout.BOUNDED_S`."""
EDITOR_S = 10.0
"""How long an editor may take: it speaks first, and at once."""
ARM_AFTER_S = 0.3
"""After the first heartbeat that sees it: the other ranks of this host must know, too, that their
timeouts are to stand still."""
LONGEST_WAIT_S = 60.0
"""A wait with a longer limit of time is one that a run would be stopped in; one that a program
gives up within this is given up in a plan."""
VAIN_S = 120.0
"""Where ranks that sleep are woken so often, for so long of planned time, and nobody does anything
else, they wait in loops for what never comes."""
CHECK_S = 1.0
"""How long one more look for keys that are not there sleeps."""
ASKING_CPU_S = 0.5
"""Who uses more in them computes."""
HEARTBEAT_S = 0.1
"""Between two beats."""
SELDOM_S = 1.0
"""How often is looked for what is hardly expected any more: a supervisor that is gone while a rank
is at its prompt, a node that is started late, what is to come of an install."""
SOON_S = 5.0
"""How long after an install what is to come of it is looked for often."""
OTHERS_COME_S = 1.0
"""So long a rank waits in the store for other nodes: for the one that serves it to become the head,
and where none comes, for they may have no distdebug."""
MEET_S = 8.0
"""So long a rank that makes its group, or a program that is over, waits for the meeting: it takes
some milliseconds once all nodes are there."""
QUICK_S = 60.0
"""How long a rank asks the store again and again; after it every `SELDOM_S`."""
GLOO_WORKERS_S = 1.0
"""How long gloo's workers may take to let go of what they have worked on."""
STORE_OPERATION_S = 10.0
"""How long one operation of a store of ours may take."""
CONNECT_S = 2.0
"""How long it may take to connect to a store, or to a node's head."""
SELF_TEST_S = 10.0
"""How long the trial of torch's insides may take, in a child: one that hangs is killed."""
BRANCHES_OFF_S = 1.0
"""How long a branch that is taken too often is not followed; twice as long each time."""
