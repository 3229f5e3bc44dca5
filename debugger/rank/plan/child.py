"""A planned rank, from the fork to its end: what the interpreter does with a script, done here.

The program sees the node that the rank would be on: what a scheduler or an MPI has put into its
environment, and its name where the job has several. Programs ask those beside RANK, or before it. A
plan is made within an allocation, too, whose variables say what the shell there is; and all ranks
of it are on one machine.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from distcore.backend import register
from distcore.plan.backend import NAME, PlanBackend
from distcore.torch_private import unwatched

from ...record.requests.plan_request import Outcome, Request
from ...record.wording import by_device
from ...record.writing.program_writer import ProgramWriter, program_path
from ..agreement.guards import Agreement
from ..group import outstanding, wrap  # noqa: F401 - the ranks that are forked share it
from ..group.checked_group import CPP_NAMES, CheckedGroup
from ..group.tracked_work import TrackedWork
from ..install import RUN_DIRECTORY, Layer, install, store_watch
from ..log import own_streams
from ..log.rank_log import report_own_fault
from ..record import call_site
from ..record.describe import METHODS
from ..record.exception_text import HANDS_ON
from ..record.recorder import GroupRecord
from ..torch_private import planned_accelerator, planning
from ..torch_private.gloo import NoSockets
from ..torch_private.operator_calls import tensors_of
from ..torch_private.planned_accelerator import number_at
from ..torch_private.planned_devices import DevicePlaces
from ..torch_private.probe import before, instead
from ..torch_private.stores import watch_store
from ..torch_private.training import on_optimizer_steps
from .exchange import PlannedExchange, PlannedStore, Planner
from .numbers import Decisions
from .standing_threads import StandingThreads
from .taint import Taint
from .values import Values, pickler_for_ranks

_LOOKED_UP = ("gethostbyname", "gethostbyname_ex", "getaddrinfo")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a rank among all."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int


def answer_for_schedulers(place: RankPlace, environment: MutableMapping[str, str]) -> None:
    """Sets the variables by which schedulers and MPIs tell a rank its place, where they are there
    to this rank; of a job of Slurm all of them."""
    in_a_job = "SLURM_JOB_ID" in environment or "SLURM_PROCID" in environment
    variables = {
        "SLURM_PROCID": place.rank,
        "SLURM_NTASKS": place.size,
        "SLURM_NPROCS": place.size,
        "SLURM_LOCALID": place.local_rank,
        "SLURM_NODEID": place.node,
        "SLURM_NNODES": place.nodes,
        "SLURM_JOB_NUM_NODES": place.nodes,
        "OMPI_COMM_WORLD_RANK": place.rank,
        "OMPI_COMM_WORLD_SIZE": place.size,
        "OMPI_COMM_WORLD_LOCAL_RANK": place.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": place.local_size,
        "OMPI_COMM_WORLD_NODE_RANK": place.local_rank,
        "PMI_RANK": place.rank,
        "PMI_SIZE": place.size,
        "PMIX_RANK": place.rank,
        "MPI_LOCALRANKID": place.local_rank,
        "MPI_LOCALNRANKS": place.local_size,
    }
    for name, value in variables.items():
        if name in environment or (in_a_job and name.startswith("SLURM_")):
            environment[name] = str(value)


def answer_for_host(place: RankPlace) -> None:
    """From now on the machine has another name on each node of the job. Whoever looks it up finds
    this one."""
    if place.nodes < 2:
        return
    real = os.uname()
    name = f"{real.nodename}-{place.node}"
    told = os.uname_result((real.sysname, name, real.release, real.version, real.machine))
    names = {f"{real.nodename}-{node}" for node in range(place.nodes)}
    given: Any = os
    given.uname = lambda: told
    own: Any = socket
    own.gethostname = lambda: name
    own.getfqdn = lambda host="": name if host in ("", name) else host

    def look_up(usual: Callable[..., Any], host: Any = "", *args: Any, **kwargs: Any) -> Any:
        return usual("localhost" if host in names else host, *args, **kwargs)

    for function in _LOOKED_UP:
        instead(own, function, look_up)


_LAUNCHERS = ("torchrun", "mpiexec", "mpirun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def flush() -> None:
    """Writes what the program has printed so far."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def refuse(directory: Path, name: str, sentence: str) -> NoReturn:
    """Leave the sentence, unless there is one, and end this process at once."""
    flush()
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory / name, flags, 0o600)
        os.write(descriptor, sentence.encode())
    os._exit(0)


def line_of_user() -> str:
    """Returns where the program is, such as "train.py:30"; "" where none of it is on the stack."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith("<") and call_site.frame_kind(path) == call_site.USER:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def on_started_ranks(tell: Callable[[str], None]) -> None:
    """From now on `tell` hears what command is about to be started as a rank, or to start ranks."""

    def start(_: Any, args: Any, *others: Any, **named: Any) -> None:
        env = named.get("env", others[9] if len(others) > 9 else None)
        if _starts_ranks(args, env):
            tell(args if isinstance(args, str) else " ".join(map(str, args))[:80])

    before(subprocess.Popen, "__init__", start)


def _starts_ranks(args: str | Sequence[Any], env: Mapping[str, str] | None) -> bool:
    own = os.environ
    if env is not None and "RANK" in env and env.get("RANK") != own.get("RANK"):
        return True
    words = args.split() if isinstance(args, str) else [str(word) for word in args]
    named = {os.path.basename(word) for word in words[:1]}
    return bool(named & set(_LAUNCHERS)) or any(word in _MODULES for word in words[:6])


class EnoughSteps(SystemExit):
    """The rank has made as many steps as the plan is asked for. `finally` blocks run."""


def end_after_steps(most: int, enough: Callable[[], None]) -> None:
    """Counts the steps of each optimiser: the first that has made so many ends the program, which
    `enough` is told."""
    made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def stepped(optimizer: Any) -> None:
        made[optimizer] = made.get(optimizer, 0) + 1
        if made[optimizer] >= most:
            enough()
            raise EnoughSteps(0)

    on_optimizer_steps(lambda _: None, stepped)


class PlannedAgreement(Agreement):
    """An agreement that asks no rank: agreement is what the simulation is for."""

    def guard(self, record: GroupRecord, store: Any) -> None:
        """Calls are made at once."""

    def monitored_barrier(
        self, record: GroupRecord, store: Any, backends: Callable[..., None]
    ) -> Callable[..., None]:
        """Returns the backend's, which waits for no rank."""
        del record, store
        return backends


class PlannedLayer(Layer):
    """See `Layer`. `writer` is this rank's program."""

    remembering = NoSockets
    prechecks = None  # most values are stand-ins, of which nothing can be told

    def __init__(self, directory: Path, writer: ProgramWriter) -> None:
        super().__init__(directory, writer)
        writer.find_line = self.recorder.safe_site
        self._program = writer
        self.places: DevicePlaces | None = None
        """The devices of tensors, where GPUs are pretended."""

    def _agreement(self) -> PlannedAgreement:
        return PlannedAgreement(self.recorder, self.level, self.sockets)

    def observe(self) -> None:
        super().observe()
        for name in ("get", "wait", "multi_get"):
            watch_store(PlannedStore, name, store_watch(self.recorder))
        self._stand_before_calls()
        before(TrackedWork, "_was_asked", lambda work: self._program.put("asked", work.number))
        planning.on_awaited_futures(lambda: self.recorder.writer.calls, self._were_awaited)

    def _were_awaited(self, first: int) -> None:
        """Calls from this number on whose futures were handed out were waited for, at this line."""
        site = 0
        for number in sorted(outstanding.awaited):
            if number >= first:
                site = site or self.recorder.safe_site(sys._getframe(1))
                self._program.waited(number, site)
                outstanding.remove(number)

    def come_to_rest(self) -> None:
        # A call whose handle was kept to the end is complete by then in most runs.
        outstanding.works.clear()
        super().come_to_rest()

    def _begin(self) -> None:
        """No thread looks at it from time to time: nobody waits for its heartbeat."""

    def _check_replicas(self) -> None:
        """Their values are stand-ins, too."""

    def _stand_before_calls(self) -> None:
        """Leaves out the looks of the layer and the backend, which are no part of the program, and
        need not be followed as such: a gather among many ranks has as many tensors, each of which
        is looked at often."""

        def call(
            original: Callable[..., Any], group: CheckedGroup, *args: Any, **kwargs: Any
        ) -> Any:
            __tracebackhide__ = True
            with unwatched():
                if self.places is not None:
                    self._refuse_other_devices(group, args, self.places)
                return original(group, *args, **kwargs)

        for name in (*METHODS, *CPP_NAMES):
            instead(CheckedGroup, name, call)

    @staticmethod
    def _refuse_other_devices(
        group: CheckedGroup, args: tuple[Any, ...], places: DevicePlaces
    ) -> None:
        """Raises as torch does where no backend of the group is for a tensor's device."""
        __tracebackhide__ = True
        if set(by_device(group._record.backend.lower()).values()) != {"nccl"}:
            return
        for one in tensors_of(args[:2]):
            if places.is_surely_on_the_cpu(one) and number_at(sys._getframe(2)) >= 0:
                raise RuntimeError("No backend type associated with device type cpu")


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
    # Who comes first tells the others what to share.
    tells = rank == request.ranks[0]
    planner = Planner(connection, found)
    if tells:
        planner.before_wait = functools.partial(_tell_modules, planner)
    node, local_rank = divmod(rank, request.local_size)
    nodes = -(-request.world_size // request.local_size)
    local_size = min(request.local_size, request.world_size - node * request.local_size)
    place = RankPlace(rank, request.world_size, local_rank, local_size, node, nodes)
    _surroundings(request, place)
    if entry is not None:
        entry.surround(rank)
    writer = ProgramWriter(program_path(request.directory, rank))
    writer.claim(rank, request.world_size, rank % request.local_size, 0)
    taint = Taint()
    ranks = frozenset(request.ranks)
    exchange = PlannedExchange(
        planner, taint, request.real_bytes, writer.came, request.barriers_wait, ranks
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
    planner.stands = StandingThreads(
        lambda frame: layer.recorder.site(frame, of_another=True) if frame is not None else 0
    ).tell
    decisions = Decisions(request.undecided, layer.recorder, writer)
    if request.accelerator == "cuda":
        layer.places = planned_accelerator.pretend(request.local_size)
    Values(taint, decisions, exchange.agreed, layer.places).follow()
    if layer.places is not None:
        writer.find_stream = number_at
    planning.share_shapes(planner.recall, planner.remember)
    planning.share_empty_chunks()
    planning.write_sent_objects_with(pickler_for_ranks(taint))
    if request.steps:
        end_after_steps(request.steps, functools.partial(writer.put, "enough"))
    answer_for_host(place)
    _planned_time(planner)
    _no_other_program(layer, writer)
    _no_other_ranks(request)
    signal.signal(signal.SIGXCPU, _out_of_time(layer, request.time_s))
    code = _run(request, layer, None if entry is None else lambda: entry.enter(rank))
    if tells:
        with contextlib.suppress(Exception):
            _tell_modules(planner)
    return code


def _tell_modules(planner: Planner) -> None:
    planner.tell(["modules", *sorted(sys.modules)])


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
        flush()
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

    def tell(*_: object, **__: object) -> None:
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
    flush()
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
