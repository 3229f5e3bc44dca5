"""Limits of time: an inspection waits so long for what it asks for."""

from __future__ import annotations

TOOL_S = 30.0
"""A tool of others has ended: gdb, which on a busy host takes most of it before it stops the
process, or Slurm's squeue."""
ANSWER_S = 5.0
"""A rank has written its dump, or its debug server has answered; gdb has let go of a process."""
WRITTEN_S = 1.0
"""What has not changed for so long is being written by nobody."""
REPLY_S = 3.0
"""A thread of a rank, on a host that may be crowded, has answered: the store, or the layer, which
has taken its hooks out again."""
INSTALL_LOOK_EVERY_S = 0.02
