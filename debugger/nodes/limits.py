"""The limits of time of nodes: how long they wait for each other, how often they say something.

What means the same is one here, in links and in the supervisor's part of them.
"""

from __future__ import annotations

PING_EVERY_S = 0.25
"""How often the head pings its nodes."""
LOST_AFTER_S = 2.6
"""A node that has said nothing for so long is lost. An interruption of two seconds must not come to
that: before it a ping may be due, and after it what was lost is sent again (`resend_steadily`)."""
LATE_S = 0.9
"""A node whose head has said nothing for so long dials it anew."""
SILENT_S = 1.6
"""And after so long it speaks by that connection: the head takes a node for lost later than that,
and is to have heard of it by then. Where four packets or more are on the way when a network fails,
Linux takes no notice of `resend_steadily`: what was lost goes out once more after 1.6 s, and then
after 3.2 s. A new connection gets through as soon as there is a network."""
UNHEARD_S = 0.5
"""A node that has said nothing for longer is told so with each ping: its connection may be stuck in
one direction alone."""
HEAD_ANSWERS_S = 10.0
"""A head that has not answered by then is taken for out of reach; so long it keeps one waiting
whose key it does not know yet."""
TRIED_MS = 150
"""A connection that nobody has taken for so long is tried anew: by itself TCP asks again after a
second. A packet takes less from one host of a job to another."""
ANSWERS_S = 5.0
"""So long it may take until a node has said what comes at once where its host is not crowded: its
first words to a rank, which ranks it has, that it has the report."""
MOST_DIGESTS_PER_S = 2000
"""The most digests of ranks that stand still again and again."""
PINGS_PER_S = 4000
"""The most pings to all nodes together: of more nodes each is pinged more seldom."""
LINGER_MS = 1500
"""What was sent last is still delivered, for so long."""
QUEUE_EVERY_S = 0.25
"""The longest time between two reads of a queue for which is counted as listened."""
MISSED_S = 2.0
"""A process that was not run for so long may have been given up by others meanwhile."""
COMES_S = 30.0
"""So long one waits for what another one owes, as long as that is there: a node for a head that all
were told of, and for its report when its own ranks have ended (where ranks were given time to end,
as after SIGTERM, so much longer); who looks at the job for an answer; a head for what is missing of
what a node has told, before it judges what it has."""
HEAD_FIRST_S = 3.0
"""So long nodes that were told of a head wait for it before they start their ranks."""
TAKE_EVERY_S = 0.1
"""So often a head takes in what others say while it pauses, and looks for those that it has not
heard."""
ACTS_S = 15.0
"""Longer than any action takes on its node, or the end of what a node was told to end."""
TOGETHER_NS = 1_000_000_000
"""A node that is heard so much later than another one was last is not lost with it."""
MEETING_S = 6.0
"""So long the head waits, at its own end or with a verdict, for nodes that were let in and have not
come yet: on a crowded machine a node may stand still for seconds between the one and the other."""
AGAIN_EVERY_S = 1.0
"""So often the head asks a node again of which something is missing, and whether all nodes are
there; and a node tells what its ranks have written into their logs, but where there are many nodes,
as seldom as digests of ranks that stand still."""
THERE_AND_BACK_S = 1.0
"""The way to another node and back may take so long, beyond the time that the stacks take there."""
