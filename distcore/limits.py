"""The limits of time of distcore: each limit of time once.

What means the same is one here, whichever transport or engine asks.
"""

FIRST_PAUSE_S = 0.00002
"""Between two looks at what wakes nobody (a CUDA event, an MPI request), at first: each pause is
longer than the one before it, up to the caller's longest."""
CALL_PAUSE_S = 0.001
"""The longest such pause while a thread of the program waits in a call: it is what the call takes
too long by, at most."""
MESSAGE_PAUSE_S = 0.002
"""The longest one of a thread of ours that moves messages beside the program, or asks whether work
on a stream is over."""
REST_PAUSE_S = 0.02
"""The longest one where nobody waits for milliseconds: for communicators to begin or end, for the
other ranks of a barrier with a time limit, for what a watchdog looks after."""
FIRST_STORE_PAUSE_S = 0.0002
"""Between two looks into torch's store, at first: each is a request to its server."""
LOOK_AGAIN_S = 0.2
"""A rank that waits for others looks so often whether one of them has failed, or gave up,
meanwhile; and while it joins, whether there is a second rank of its number."""
CHECK_EVERY_S = 0.05
"""A thread that is inside another library's wait comes out of it so often, to see whether it is to
go on."""
LONGEST_WAIT_S = 60.0
"""No single wait of a thread of ours is longer; nothing is decided then, it waits again."""
DRAIN_S = 10.0
"""How long the end of a group, a communicator or a connection waits for what is still on its way:
calls that nobody waited for, what is on a GPU's streams, messages that peers have not taken, the
others' ends."""
EXIT_DRAIN_S = 2.0
"""The same where the process ends by an exception: somebody may have interrupted it."""
ANSWER_S = 5.0
"""How much longer than its own time a rank of a barrier waits for the first rank's answer, which
may come at the very end of that time; and how long the first rank waits for the others to read it,
of which one may have come and died."""
LEFT_S = 0.5
"""How long after a peer has left or closed its connection this rank still waits for what it needs
from there: its last message may be on the way, and a peer that was not needed may have ended
rightly."""
LAST_WORDS_S = 0.8
"""How long after the end of one of a peer's connections a message may still be on its way over
another one."""
CALLER_S = 6.0
"""The same after the peer's own end, while it may be calling: longer than a listener waits for a
caller (`PENDING_S`)."""
TELL_S = 3.0
"""How long `close` tries to reach those whom it has to tell of a failure: who is not told takes
this rank, which leaves, for the cause. On a crowded machine an answer takes its time; one who has
ended refuses at once."""
ASK_EVERY_S = 1.0
"""How often a rank of NCCL asks torch's store what the others have said there: whether one of them
has failed, and whether one asks for its messages."""
STUCK_S = 2.0
"""A call into NCCL that has not come back by then does not: its communicator is aborted beside
it."""
RENEW_NS = 60 * 1_000_000_000
"""How often the clocks of host and GPU are compared."""
CALLBACK_S = 0.1
"""A callback of a future that takes longer may be waiting for those behind it, so they begin."""
SPIN_S = 0.0002
"""MPI moves data only inside its own calls: no pauses for about as long as it is on its way, which
is this and `line.SPIN_S_PER_BYTE`, at most `MOST_SPIN_S`."""
MOST_SPIN_S = 0.05
LANE_SPIN_S = 0.00005
"""So long a thread that waits for a message looks into shared memory, and yields, before it sleeps
(`transports.yielding`): 4 ranks on 2 cores take a tenth less CPU for a message. With more than two
ranks a core they sleep at once: the one that is waited for is seldom next, so that 8 ranks on 2
cores gain nothing, and with 1 MiB they lose a twentieth."""
STEP_SPIN_S = 0.00003
CROWDED_STEP_SPIN_S = 0.0001
"""The same in a step of a collective, whose ranks all come at one time: with a core for each rank,
and with fewer. 4 ranks on 2 cores reduce 4 B in half the time."""
SHARE_S = 10.0
"""How long two ranks of one host may take to agree on the memory that they share."""
SHORTEST_HALF_OPEN_PAUSE_S = 0.05
"""A connection that may be half open is looked at as often as the kernel tries it again, but not
more often than this, nor less often than every two seconds."""
USER_TIMEOUT_S = 30.0
"""What was sent and is not acknowledged by then is lost: more than a switch takes to find another
way, or a virtual machine to be moved."""
PENDING_S = 5.0
"""A caller that has not said who it is by then is dropped."""
HELLO_S = 0.05
"""A good peer's hello follows at once; who has been silent this long may be dropped for others."""
