"""The limits of time of the supervisor and of our processes beside it.

What means the same is one here, in whichever part it is needed.
"""

ASKED_STACKS_S = 10.0
"""How long the stacks may take that somebody has asked for."""
STACKS_S = 5.0
"""How long those may take that are taken at a verdict, since the ranks' end waits for them; and one
attempt of py-spy at one process."""
OWN_STACK_S = 3.0
"""For a process to write its stacks itself, which on a crowded host takes its time."""
STANDS_S = 2.0
"""For so long the answer waits for the rank to stand; the request holds on."""
GOES_S = 5.0
"""A rank at its prompt answers at once; one that does not is stopped by a signal, say."""
SILENT_S = 3.0
"""A heartbeat older than this comes from a process that cannot run Python."""
NOTICE_EVERY_S = 10.0
"""How often a notice that still holds is repeated, and the file for Prometheus is written."""
SAMPLE_EVERY_S = 1.0
"""How often the host is asked about its processes, memory and GPUs, and the calls of all ranks are
counted: a ring has room for the calls of a second, at 4,096 calls a second."""
FINDING_COMMAND_S = 30.0
"""How long a command of `--on-finding-run` may take, which the end of a run waits for."""
END_GRACE_S = 2.0
"""How long ranks may take to end after SIGTERM, at a verdict, or when the command has ended."""
RAISE_GRACE_S = 3.0
"""How long ranks may take to raise the verdict at their own lines."""
ORPHAN_GRACE_S = 1.0
"""How long what the command has started may go on when it has ended, before the run is over."""
INTERRUPTED_S = 0.6
"""How long to go on printing what the ranks have printed after Ctrl-C, when somebody waits for the
prompt; and how long stacks may take then."""
PROCESSES_EVERY_S = 0.5
"""How often all processes below the command are listed: those that start, and those that nobody
watches."""
GONE_WITHIN_S = 5.0
"""How long a process that was killed, or told to end, may take to be gone."""
WAKE_AFTER_S = 0.3
"""A rank that has not ended by itself after so long gets SIGCONT: it may be stopped."""
INTERRUPT_GRACE_S = 5.0
"""After Ctrl-C, or when the terminal vanishes; a second Ctrl-C ends it."""
TERMINATE_GRACE_S = 30.0
"""What torchrun gives its ranks, and Slurm a job (KillWait)."""
TERMINATE_MARGIN_S = 2.0
"""What our own end may take beyond the time that the ranks were given."""
LOOKS_APART_S = 0.25
"""Between two looks that tell whether a process works: its processor time is compared."""
IDLE_S = 0.5
"""An unfinished line is shown when nothing was added to it for this long."""
REFRESH_S = 1.0
"""How often an unfinished progress bar (a line with carriage returns) is shown on a terminal."""
TIMES_EVERY_S = 0.02
"""How fine the times are that are kept of a rank's output."""
RETRY_S = 1.0
"""After so long it is tried again to write a log, or to start what shows output and has ended."""
RECORDS_EVERY_S = 0.1
"""How often the records are looked at while they change."""
STILL_EVERY_S = 0.25
"""While nothing changes, only the clock can bring a finding: looking less often is enough."""
CONFIRM_AFTER_S = 0.05
"""A finding is believed when it has lasted for so long."""
SETTLING_S = 0.5
"""But none holds for longer than it has been, at the look, since more was reported, or than this:
much that is reported is believed only when it has lasted, half a second or one minute."""
ANSWERS_S = 2.0
"""So long before such a look all are asked how far they are; within it they have answered."""
MOMENT_S = 1.0
"""In which many nodes tell what their ranks have in common, at most; then they are looked at. As
soon as all have, it is over."""
MOST_GAP_S = 1.2
"""Between the first and the last of the looks at what a process does."""
LONGEST_GAP_S = 10.0
"""The same where the kernel does not tell for how long a thread has slept: so long is waited for
those that stand still."""
A_SLEEP_S = 5.0
"""A thread that polls sleeps for less than this at a time."""
MOVING_BYTES_PER_S = 100_000
"""A process that saves or loads moves more than this; a log, or a file that is polled, less."""
STANDSTILL_WINDOW_S = 2.0
"""The processor time of a process is compared over so long: in less, one tick of the clock would be
more than the share that a loop that polls may use."""
STANDSTILL_EVERY_S = 5.0
"""How often a host whose ranks have made no call for some time is looked at."""
TRICKLE_BYTES_PER_S = 1_000
"""A process that a rank has started moves something if it moves more: a slow download. (A rank's
heartbeat alone reads 10 kB a second of what the kernel tells of it.)"""
