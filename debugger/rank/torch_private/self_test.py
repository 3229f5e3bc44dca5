"""Tries on a group of one rank whether one group can stand in front of another in this torch.

Names can all be there and mean something else. So a group is made whose backend does nothing, one
is put in front of it as is done with the program's own, and torch's C++ code makes a call of it by
name. Nothing of it is left behind. It takes a millisecond, which is why no result is kept: a file
that says how another build of the same version did would be wrong some day. Where torch is newer
than all that were tried, a forked child does it: it may end there in any way, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ...record import torch_versions
from ..limits import SELF_TEST_S
from .groups import CREATION, clone_group
from .probe import c10d, dist

_NAME = "distdebug/self-test"


def try_a_front() -> None:
    """Switch the observation of groups off, if one in front of another does not do its work."""
    if not CREATION.works:
        return
    unlike = tried(_unlike)
    if unlike:
        CREATION.switch_off(f"a trial with torch {torch.__version__} went wrong ({unlike})")


def tried(trial: Callable[[], str]) -> str:
    """Returns what the trial says is not as known, or its error; runs it in a forked child where
    torch is newer than all known ones."""
    is_new = bool(torch_versions.too_new(torch.__version__))
    return _in_child(trial) if is_new else _outcome(trial)


def _outcome(trial: Callable[[], str]) -> str:
    try:
        return trial()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _in_child(trial: Callable[[], str]) -> str:
    """Returns the trial's result from a forked child, or how that has ended."""
    from ...record.streams import readable

    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12 on, where there are threads
        pid = os.fork()
    if not pid:
        try:
            os.write(writing, b"+" + _outcome(trial).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if not readable([reading], SELF_TEST_S):
            os.kill(pid, signal.SIGKILL)
            return f"it has not ended in {SELF_TEST_S:.0f} s"
        told = os.read(reading, 2000).decode(errors="replace")
    finally:
        os.close(reading)
        with contextlib.suppress(ChildProcessError):
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return told[1:] if told else f"it ended with {status}, by signal {-status}"


def _unlike() -> str:
    """Tells what is not as it should be; "" where all is, and where there is nothing to try it
    with."""
    fake: Any = getattr(torch._C._distributed_c10d, "FakeProcessGroup", None)
    make = getattr(fake, "_create_internal", None)
    if make is None:
        return ""
    kind, cpu = c10d.ProcessGroup.BackendType.GLOO, torch.device("cpu")
    inner = dist.ProcessGroup(dist.PrefixStore(_NAME, dist.HashStore()), 0, 1)
    inner._set_default_backend(kind)
    inner._register_backend(cpu, kind, make(rank=0, world_size=1))
    inner._set_group_name(_NAME)
    inner._set_group_desc("trial")
    outer = clone_group(_TrialGroup, inner, "gloo")
    outer.inner, outer.calls = inner, []
    if (outer.rank(), outer.size(), outer.group_name) != (0, 1, _NAME):
        return "rank, size or name of the group in front are others"
    if not isinstance(inner._get_backend(cpu), fake) or not isinstance(
        outer._get_backend(cpu), fake
    ):
        return "the group in front has another backend"
    if outer.name() != inner.name():
        return "the group in front has another default backend"
    c10d._register_process_group(_NAME, outer)
    c10d._unregister_process_group(_NAME)
    c10d._register_process_group(_NAME, outer)  # raises, if it is still registered
    try:
        functional = torch.ops._c10d_functional
        sums = functional.all_reduce(torch.ones(2, device="cpu"), "sum", _NAME)
        sums = functional.wait_tensor(sums)
    finally:
        c10d._unregister_process_group(_NAME)
    if outer.calls != ["allreduce"]:
        return "the group in front does not get the calls of torch's C++ code"
    return "" if sums.tolist() == [1.0, 1.0] else "the call's result was lost"


class _TrialGroup(c10d.ProcessGroup):  # type: ignore[misc]
    """A group as CheckedGroup, for one call."""

    inner: Any
    calls: list[str]

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        """Note the call, and forward it."""
        self.calls.append("allreduce")
        work = self.inner.allreduce(*args, **kwargs)
        if not isinstance(work, dist.Work):  # which C++ code would use as it is
            raise TypeError(f"a call returned {type(work).__name__}, no Work")
        return work
