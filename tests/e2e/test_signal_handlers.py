"""What the handler of a signal raises while a rank is in a call, or in the layer's own code, is the
program's: it gets it once, and what it and the others have called by then is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

ONCE = """
# Each of these waits is ended by an alarm; its call goes on, and the other rank meets it.
from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Process
record = pathlib.Path(os.environ["DISTDEBUG_RUN_DIR"], "ranks", "0.flight")
reader = FlightReader(record) if rank == 0 else None
def look():
    return reader.view(Process(alive=True))
def ring(calls, go):
    # Not before the call is on record as one that is waited for: else there is none to go on.
    while not any(one.call is not None and one.call >= calls for one in look().waits):
        time.sleep(0.01)
    time.sleep(0.3)  # not for order: so that it has come to where it waits
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    open(go, "w").close()
def attempt(wait, meet):
    dist.barrier()
    go = f"{sys.argv[1]}.{attempt.count}"
    if rank == 1:
        while not os.path.exists(go):
            time.sleep(0.01)
        meet()
    else:
        armed.append(None)
        watch = threading.Thread(target=ring, args=(look().calls, go))
        try:
            watch.start()
            wait()
        except TimeIsUp:
            caught.append(attempt.count)
        watch.join()
    attempt.count += 1
attempt.count = 0
one, two = (dist.new_group([0, 1]) for _ in range(2))
total, got = torch.ones(4), torch.zeros(3)
reduce = lambda: dist.all_reduce(total, group=one)
attempt(reduce, reduce)
later = lambda: dist.all_reduce(total, group=two, async_op=True).wait()
attempt(later, later)
attempt(lambda: dist.recv(got, 1), lambda: dist.send(torch.full((3,), 7.0), 0))
assert rank == 1 or got.tolist() == [7.0] * 3, got
assert rank == 1 or caught == [0, 1, 2], caught
dist.barrier()
for group in (one, two):
    total.fill_(1)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [2.0] * 4
"""
ALWAYS = """
# Alarms at any moment of a call on a group of this rank alone: none is lost.
alone = dist.new_group([rank], use_local_synchronization=True)
until, calls = time.monotonic() + 2, 0
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.0021)
while time.monotonic() < until:
    calls += 1
    shape = calls % 1000 + 1  # new to the layer at first, so that it is long at it
    tensor = torch.ones(shape)
    try:
        armed.append(None)
        dist.all_reduce(tensor, group=alone)
        armed.clear()
    except TimeIsUp:
        caught.append(calls)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(caught) == len(raised) > 0, (len(caught), len(raised))
"""
PROGRAM = """
import os, pathlib, signal, sys, threading, time
import torch, torch.distributed as dist
class TimeIsUp({kind}):
    pass
armed, raised, caught = [], [], []
def handler(number, frame):
    if armed:
        armed.clear()
        raised.append(number)
        raise TimeIsUp("by the alarm")
signal.signal(signal.SIGALRM, handler)
dist.init_process_group("gloo")
rank = dist.get_rank()
{body}
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(ONCE, "RuntimeError", id="once"),
        pytest.param(ALWAYS, "ValueError", id="always"),
        pytest.param(ALWAYS, "RuntimeError", id="always-as_gloo", marks=pytest.mark.long),
        pytest.param(ALWAYS, "TimeoutError", id="always-as_systems", marks=pytest.mark.long),
    ],
)
def test_the_program_gets_it(
    body: str, kind: str, level: str, tmp_path: Path, zygote: Zygote
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(body=body, kind=kind))
    run = zygote.run(2, [str(script), str(tmp_path / "go")], tmp_path, ["--debug-level", level])
    assert run.exit_code == 0, run.explain()
    assert run.errors == []
    assert run.report["off"] == []


LAST = """
import os, signal
import torch, torch.distributed as dist
raised = []
def handler(number, frame):
    raise RuntimeError("a worker was killed")
signal.signal(signal.SIGUSR1, handler)
class Source:  # is asked for lines of the stack, while the exception is put on record
    def get_source(self, name):
        if not raised:
            raised.append(name)
            os.kill(os.getpid(), signal.SIGUSR1)
        return None
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    globals_ = {"__loader__": Source(), "__name__": "made"}
    exec(compile("def fail():\\n    raise ValueError('no sample')", "made.py", "exec"), globals_)
    try:
        globals_["fail"]()  # <- look here
    except ValueError:
        if ENDS:
            raise
dist.all_reduce(torch.ones(2))
"""


@pytest.mark.parametrize("ends", [True, False])
def test_a_handler_that_raises_while_the_program_ends(
    ends: bool, tmp_path: Path, zygote: Zygote
) -> None:
    """The process ends of what it would end of without us."""
    script = tmp_path / "train.py"
    script.write_text(LAST.replace("ENDS", str(ends)))
    run = zygote.run(2, [str(script)], tmp_path)
    if not ends:
        assert (run.exit_code, run.errors) == (0, []), run.explain()
        return
    assert run.exit_code == 1, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [1])
    assert "ValueError: no sample" in error["message"]
    assert "a worker was killed" not in run.stderr
