"""A planned rank, from the fork to its end: what the interpreter does with a script, done here."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from distcore.backend import register
from distcore.plan.backend import NAME, PlanBackend

from ...record.requests.plan_request import Outcome, Request
from ...record.writing.program_writer import ProgramWriter, program_path
from ..install import RUN_DIRECTORY, install
from ..log import own_streams
from ..log.rank_log import report_own_fault
from ..record.exception_text import HANDS_ON
from ..torch_private import planned_accelerator, planned_shapes, planned_streams, planning
from .decisions import Decisions
from .exchange import PlannedExchange, Planner
from .layer import PlannedLayer
from .node import RankPlace, answer_for_host, answer_for_schedulers
from .refusal import line_of_user, on_started_ranks, refuse
from .sent_objects import SentObjects
from .standing_threads import StandingThreads
from .steps import StepLimit
from .store import PlannedStore
from .taint import Taint
from .values import Values
from .wire import PlannerLine

_STARTS_RANKS = (
    "a planned rank starts ranks itself: write `distdebug plan exec -- python script` for a script "
    "that starts its ranks by multiprocessing"
)


@dataclass(frozen=True, slots=True)
class RankEntry:
    """A rank that the program starts itself: what is to be as the program has it, and what the
    rank is then, whose result is its exit code."""

    surround: Callable[[int], None]
    enter: Callable[[int], int]


def main(
    request: Request,
    rank: int,
    connection: socket.socket,
    found: Mapping[str, str],
    entry: RankEntry | None = None,
) -> int:
    """Be this rank; its exit code. `found`: what others have found that comes out the same."""
    line = PlannerLine(connection)
    # Who comes first tells the others what to share.
    tells = rank == request.ranks[0]
    planner = Planner(line, functools.partial(_tell_modules, line) if tells else None, found)
    place = _place(request, rank)
    _surroundings(request, place)
    if entry is not None:
        entry.surround(rank)
    writer = ProgramWriter(program_path(request.directory, rank))
    writer.claim(rank, request.world_size, rank % request.local_size, 0)
    taint = Taint()
    exchange = PlannedExchange(
        planner, taint, request.real_bytes, writer.came, request.barriers_wait, request.ranks
    )
    register(PlanBackend(exchange))
    # The layer comes in front of these, as it does of torch's own.
    planning.on_world(_one_world(request, rank, entry is not None))
    planning.make_groups_on(NAME)

    def store(address: str) -> PlannedStore:
        alone = address.startswith("own:")
        return PlannedStore(planner, f"{address}:{rank}" if alone else address)

    planning.make_stores(store)
    layer = install(request.run_dir, lambda directory: PlannedLayer(directory, writer))
    if not isinstance(layer, PlannedLayer):
        raise RuntimeError("the layer of a planned rank cannot be installed")
    line.stands = StandingThreads(
        lambda frame: layer.recorder.site(frame, of_another=True) if frame is not None else 0
    ).tell
    decisions = Decisions(request.undecided)
    decisions.tell(layer.recorder, writer)
    if request.accelerator == "cuda":
        layer.places = planned_accelerator.pretend(request.local_size)
    Values(taint, decisions, exchange.agreed, layer.places).follow()
    if layer.places is not None:
        writer.find_stream = planned_streams.number_at
    planned_shapes.share_shapes(planner.recall, planner.remember)
    planned_shapes.share_empty_chunks()
    planning.write_sent_objects_with(SentObjects(taint).pickler)
    if request.steps:
        StepLimit(request.steps, functools.partial(writer.put, "enough")).observe()
    answer_for_host(place)
    _planned_time(planner)
    _no_other_program(layer, writer)
    _no_other_ranks(request)
    signal.signal(signal.SIGXCPU, _out_of_time(layer, request.time_s))
    code = _run(request, layer, None if entry is None else lambda: entry.enter(rank))
    if tells:
        with contextlib.suppress(Exception):
            _tell_modules(line)
    return code


def _tell_modules(line: PlannerLine) -> None:
    line.tell(["modules", *sorted(sys.modules)])


def _place(request: Request, rank: int) -> RankPlace:
    node, local_rank = divmod(rank, request.local_size)
    nodes = -(-request.world_size // request.local_size)
    local_size = min(request.local_size, request.world_size - node * request.local_size)
    return RankPlace(rank, request.world_size, local_rank, local_size, node, nodes)


def _surroundings(request: Request, place: RankPlace) -> None:
    """The environment, the streams and the arguments of this rank."""
    rank = place.rank
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(place.size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
        GROUP_RANK=str(place.node),
        GROUP_WORLD_SIZE=str(place.nodes),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(place.size),
        ROLE_NAME="default",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="plan",
        DISTDEBUG_RANK_PID=str(os.getpid()),
        DISTDEBUG_LEVEL="INFO",
        TORCHDYNAMO_DISABLE="1",
        CUDA_VISIBLE_DEVICES="",
    )
    os.environ[RUN_DIRECTORY] = request.run_dir
    answer_for_schedulers(place, os.environ)
    random.seed(f"distdebug plan {rank}")  # the same again, where the rank is run again
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)
    own_streams.into_files(Path(request.run_dir) / "logs", rank, anew=True)
    sys.argv[:] = [request.target, *request.arguments]


def _planned_time(planner: Planner) -> None:
    """A rank that sleeps gives its place to others, and finds that the time has passed. A program's
    own alarms are for ranks that hang; here they would hit those that wait. A child that it forks,
    a worker of a data loader, sleeps as anybody: the line to the planner is its parent's."""
    own, really_sleep = os.getpid(), time.sleep

    def alarm(seconds: int = 0, /) -> int:
        del seconds
        return 0

    slept_s = 0.0

    def sleep(seconds: float, /) -> None:
        nonlocal slept_s
        if os.getpid() != own:
            return really_sleep(seconds)
        length_s = float(seconds)
        if length_s < 0:
            raise ValueError("sleep length must be non-negative")
        planner.ask(["sleep", length_s])
        slept_s += length_s
        return None

    def later(clock: Callable[[], Any], unit: int) -> Callable[[], Any]:
        return lambda: clock() + (slept_s if unit == 1 else int(slept_s * unit))

    signal.alarm = alarm
    signal.setitimer = lambda *_: (0.0, 0.0)
    setattr(time, "sleep", sleep)  # noqa: B010
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, later(getattr(time, name), 1))
        setattr(time, f"{name}_ns", later(getattr(time, f"{name}_ns"), 1_000_000_000))


def _no_other_program(layer: PlannedLayer, writer: ProgramWriter) -> None:
    """A rank that becomes another program is planned up to there."""

    def become(*_: Any, **__: Any) -> NoReturn:
        site = layer.recorder.safe_site(sys._getframe(1))
        writer.put("cut", "it becomes another program, which is not planned", site)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(0)

    for name in ("execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe"):
        setattr(os, name, become)


def _one_world(request: Request, rank: int, started: bool) -> Callable[[int, int], None]:
    """Processes that a planned rank starts must not meet as ranks; and of those that the program
    starts, the one with the number N is rank N."""
    own = os.getpid()

    def check(joined_as: int, size: int) -> None:
        if os.getpid() != own:
            refuse(request.directory, Outcome.REFUSAL, _STARTS_RANKS)
        if started and (joined_as, size) != (rank, request.world_size):
            refuse(
                request.directory,
                Outcome.REFUSAL,
                f"process {rank} of the {request.world_size} that the program starts joins as rank "
                f"{joined_as} of {size}; a plan needs process N to be rank N of all",
            )

    return check


def _no_other_ranks(request: Request) -> None:
    own = os.getpid()

    def tell(*_: object) -> None:
        if os.getpid() == own:
            refuse(request.directory, Outcome.REFUSAL, f"{_STARTS_RANKS} ({line_of_user()})")

    planning.on_started_processes(tell)
    on_started_ranks(tell)


def _out_of_time(layer: PlannedLayer, time_s: float) -> Any:
    def end(_number: int, frame: types.FrameType | None) -> None:
        site = layer.recorder.safe_site(frame)
        writer = layer.recorder.writer
        assert isinstance(writer, ProgramWriter)
        writer.put("cut", f"it ran for {time_s:g} s", site)
        os.kill(os.getpid(), signal.SIGKILL)

    return end


def _run(request: Request, layer: PlannedLayer, enter: Callable[[], int] | None) -> int:
    """Run the program as the interpreter does; its exit code."""
    code = 0
    try:
        if enter is not None:
            code = enter()
        else:
            execute(request)
    except SystemExit as error:
        code = layer.exits.left_by(error)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:
        code = 1
        trace = _from_the_script(error)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    try:
        private: Any = threading
        private._shutdown()
    except BaseException as error:
        report_own_fault("the end of the threads", Exception(repr(error)))
    private = atexit
    try:
        private._run_exitfuncs()
    except SystemExit:
        pass
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return code


def execute(request: Request) -> None:
    """Run the program as `__main__`."""
    if request.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(request.target, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(request.target)))
    # Not run_path, which takes `__main__` back when it ends: exit handlers and threads want it.
    module = types.ModuleType("__main__")
    module.__file__ = request.target
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    target = request.target
    if os.path.isdir(target):
        sys.path[0] = target
        runpy.run_path(target, run_name="__main__")
        return
    with open(target, "rb") as file:
        code = compile(file.read(), target, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the user's program, as the interpreter runs it


def _from_the_script(error: BaseException) -> types.TracebackType | None:
    """The traceback without the frames of this file, and of what only hands on."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__ and HANDS_ON not in code.co_varnames:
            frames.append(trace)
        trace = trace.tb_next
    found: types.TracebackType | None = None
    for one in reversed(frames):
        found = types.TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found or error.__traceback__


__all__ = ["main"]
