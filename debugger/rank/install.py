"""Installs the layer in this process: once, when torch.distributed has been imported.

`Layer` is built from its parts, each of which is given what it uses: who wants to know what reaches
what reads its constructor from top to bottom. Nothing here may break the program. Whatever fails is
reported in one line and left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distcore.registration import stand_by

from ..errors.in_ranks import FindingRaised
from ..hook.loading import core
from ..record import torch_versions
from ..record.layout import Activity
from ..record.lost_pages import lost_pages
from ..record.notes import DataExhaustedNote, NotInGroupNote, UnfinishedNote
from ..record.writing.flight_file import place_of_this_process
from ..record.writing.writer import FlightWriter
from .breakpoints import POST_MORTEM, AwaitedBreakpoints
from .group import outstanding
from .group.forks import Forks
from .group.outstanding import UnwaitedWork
from .log import rank_log
from .log.debug_level import DebugLevel
from .log.rank_log import at_exit, report_own_fault, say
from .process import last_words
from .process.exceptions import Exceptions, note_cleanup_calls
from .process.exits import Exits
from .process.heartbeat import Heartbeat
from .process.init_process_group import Initialisations, claim_at_its_end
from .process.last_words import CrashWriter
from .process.main_thread import MainThread
from .process.verdict import VerdictWatch
from .record import call_site
from .record.recorder import Recorder, identity
from .torch_private import calls, groups, probe, self_test, tensor_guards, training
from .torch_private.gloo import GlooSockets, settle
from .torch_private.stores import on_store_waits

if TYPE_CHECKING:
    from .agreement.guards import Agreement
    from .breakpoints import Look
    from .checks.precheck import Precheck
    from .ddp import Models
    from .group.wrap import Groups
    from .inject.injector import Injector
    from .record.branches import BranchWatch
    from .replicas.check import ReplicaCheck
    from .replicas.pairing import PositionPairing
    from .replicas.reduced_gradients import ReducedGradients
    from .replicas.values import ValueRecorder

RUN_DIRECTORY = "DISTDEBUG_RUN_DIR"
STARTED = "DISTDEBUG_RUN_STARTED"
"""Set where a supervisor watches this process."""
FAULTS = "DISTDEBUG_FAULTS"
"""`faults.plan.VARIABLE`, of which a run without a plan loads nothing."""
MEET = "DISTDEBUG_MEET"
"""`process.meeting.VARIABLE`, of which a run on one node loads nothing."""
CHECKS = "DISTDEBUG_CHECK"
"""`checks.pipeline.CHECKS`, of which a run without checks loads nothing before its first group."""
WHY = "DISTDEBUG_WHY"
"""Asks for the branches that ranks take."""
VALUES = "DISTDEBUG_VALUES"
"""Asks for the values of one step in so many."""
MOST_STORE_KEYS = 1000
"""Waits for further keys are on record without the key: programs make keys as they go."""

_layer: Layer | None = None


def install(
    run_directory: str | None = None, make: Callable[[Path], Layer] | None = None
) -> Layer | None:
    """Observe every group that this process creates from now on.

    `run_directory` defaults to $DISTDEBUG_RUN_DIR; `make` is the kind of layer. Returns None,
    having said why in one line, when the record cannot be kept. Calling it again changes nothing.
    """
    global _layer
    if _layer is not None:
        return _layer
    path = run_directory or os.environ.get(RUN_DIRECTORY)
    if not path:
        return None
    at_exit(_come_to_rest)  # first, so that it runs after all that others register
    try:
        made = (make or Layer)(Path(path))
        made.observe()
    except Exception as error:
        report_own_fault("recording", error)
        with contextlib.suppress(OSError):
            why = f"its record could not be made: {error!r}"
            (Path(path) / f"unobserved-{os.getpid()}.txt").write_text(why, "utf-8")
        return None
    _layer = made
    return made


def installed() -> Layer | None:
    """Returns the layer that observes this process; None where nothing does."""
    return _layer


def ends_as_rank(number: int, error: BaseException) -> None:
    """An exception ends this process, and is on record: it is of the rank that MPI's launcher has
    made it, if it has not said who it is. What waits for ranks that it has spawned is none."""
    if _layer is not None and type(error).__module__ != "torch.multiprocessing.spawn":
        claim_at_its_end(_layer.recorder, _layer.directory, number)


def _register_backends(named: Collection[str]) -> None:
    with core:
        from distcore.backend import register_all  # which a program without them never needs

        register_all(named)


def _come_to_rest() -> None:
    """No thread may be within torch's code when the interpreter is finalised."""
    if _layer is not None:
        _layer.come_to_rest()
    settle()


class Layer:
    """Everything that observes this process, in a forked child as well. `directory`: of the run."""

    remembering: Callable[[], GlooSockets] = GlooSockets

    def __init__(self, directory: Path, writer: FlightWriter | None = None) -> None:
        """`writer`: where the record goes, if not into a new flight record of this process."""
        stand_by(_register_backends)  # before all that goes in front of torch's functions here
        self.directory = directory
        # What the process is, and what is known of it.
        self.main_thread = MainThread()
        self.sockets = self.remembering()
        self.level = DebugLevel()
        self.verdict = VerdictWatch(directory, self.main_thread, self.sockets)
        if writer is None:
            writer = FlightWriter(place_of_this_process(directory))
        self.recorder = recorder = Recorder(writer, identity(), self.verdict)
        recorder.lines_in_graph = calls.lines_in_graph
        # How it ends.
        self.exceptions = Exceptions(
            recorder, [lambda *told: "models" in vars(self) and self.models.explain(*told)]
        )
        self.breakpoints = AwaitedBreakpoints(recorder, directory, self.main_thread)
        post_mortem = self.breakpoints.post_mortem if os.environ.get(POST_MORTEM) else None
        self.exits = Exits(recorder, self.exceptions, self.verdict, post_mortem)
        # What it does, and its groups.
        self.branches = _branch_watch(directory)
        self.values = _value_recorder(recorder, directory)
        self.forks = Forks(recorder, self.sockets)
        # What looks at it from time to time.
        self.unwaited = UnwaitedWork(recorder)
        self.last_words = CrashWriter(directory / "stacks")
        self.injector: Injector | None = None
        self._look_once: Look | None = None
        self._heartbeat: Heartbeat | None = None
        self._told_of_lost_pages = False

    def observe(self) -> None:
        """Begin. What begins later comes in front of torch's functions, and runs earlier at the
        end of the process."""
        recorder, directory = self.recorder, self.directory
        probe.REGISTRY.on_off(_part_off(recorder))
        newer = torch_versions.too_new(torch.__version__)
        if newer:
            recorder.part_off("torch", newer)
        process = rank_log.of_this_process
        process.rank_of = lambda: recorder.writer.rank
        process.directory, process.debug_level = directory, self.level.current
        process.note_part_off = lambda what, why: recorder.part_off(what, why, said=True)
        process.passing = (FindingRaised,)
        rank_log.observe_warnings()
        initialisations = Initialisations(
            recorder,
            directory,
            lambda: "groups" in vars(self) and self.groups.creation_was_seen,
            self.forks,
            self.exits,
            self.unwaited,
        )
        initialisations.observe()
        if os.environ.get(FAULTS):
            self._plan_faults()
        elif os.environ.get(MEET):
            self.groups.before_default_group(self._take_heads_faults)
        self._observe_groups()
        self.exits.observe()
        self._observe_further(initialisations)
        self.main_thread.observe()
        self.breakpoints.observe(self._look_at_calls)
        self.forks.on_own_rank(self.breakpoints.adopt)
        self._begin()
        self.forks.observe(directory, identity, self._begin)

    def _observe_further(self, initialisations: Initialisations) -> None:
        """Installs the further parts. One that fails is left out, and takes nothing else with
        it."""
        recorder = self.recorder
        parts: dict[str, Callable[[], None]] = {
            "meeting the other nodes": self._meet_nodes,
            "the check of replicas": self._check_replicas,
            "monitored_barrier on every backend": calls.open_monitored_barrier,
            "timeouts that change": groups.on_group_timeout,
            "the debug level": self.level.observe,
            "watching compiled programs": lambda: calls.keep_uncompiled(call_site.DIRECTORIES),
            "watching models": self._observe_models,
            "watching calls on other groups": lambda: calls.on_not_in_group(
                _note_not_in_group(recorder)
            ),
            "watching exceptions that are caught": lambda: calls.on_failures(recorder.left_call),
            "watching waits for stores": lambda: on_store_waits(store_watch(recorder)),
            "watching init_rpc": initialisations.observe_rpc,
            "watching the end of data": lambda: training.on_data_end(_note_data_end(recorder)),
            "watching branches": self._watch_branches,
            "recording values": self._record_values,
        }
        for what, begin in parts.items():
            try:
                begin()
            except Exception as error:
                report_own_fault(what, error)

    def _observe_groups(self) -> None:
        """Has each group observed that torch creates. What does so is loaded with the first."""
        recorder = self.recorder
        self_test.try_a_front()
        tensor_guards.try_tensor_guards()

        def create(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                observer = self.groups
            except Exception as error:
                recorder.recording_is_off("recording of groups")
                report_own_fault("recording of groups", error)
                return original(*args, **kwargs)
            return observer.create(original, *args, **kwargs)

        groups.on_group_creation(create)
        calls.coalesce_messages()
        groups.show_to_hooks()
        what = "recording of groups of torch.distributed._dist2"
        groups.on_unregistered_groups(lambda: recorder.recording_is_off(what))

    @cached_property
    def groups(self) -> Groups:
        """The observer of this process's groups, with what stands before their calls; made for the
        first one. Raises ImportError where the program has dropped torch's modules by then."""
        probe.kept_module(probe.DIST)
        with core:
            from .checks.pipeline import Pipeline
            from .group.timeouts import Timeouts
            from .group.wrap import Groups

            agreement = self._agreement()
        recorder = self.recorder
        pipeline = Pipeline(
            recorder,
            self.level,
            self.breakpoints.before_calls,
            lambda record: self.gradients.before(record),
            self.branches.at_calls if self.branches is not None else lambda _record: None,
            self.values.before if self.values is not None else lambda _record: None,
            self._look_once,
        )
        return Groups(
            recorder,
            self.sockets,
            self.forks,
            Timeouts(recorder, self.directory, self.sockets),
            pipeline,
            agreement,
            note_cleanup_calls(recorder, self.exceptions),
        )

    def _agreement(self) -> Agreement:
        from .agreement.guards import Agreement

        return Agreement(self.recorder, self.level, self.sockets)

    def _look_at_calls(self, look: Look | None) -> None:
        """See `Pipeline.look_once`."""
        self._look_once = look
        if "groups" in vars(self):
            self.groups.pipeline.look_once(look)

    @cached_property
    def prechecks(self) -> Precheck | None:
        """Begins and ends prechecks; None where they can tell nothing."""
        from .checks.precheck import Precheck

        return Precheck(
            lambda: self.replicas.look_meanwhile(),
            self.level.raise_to_detail,
            lambda: self.groups.pipeline.make_all(),
        )

    def _observe_models(self) -> None:
        """Has each model observed whose parts torch pairs among ranks."""

        def backward_ended() -> None:
            if "models" in vars(self):
                self.models.look()

        training.on_model_replicated(lambda model: self.models.made(model))
        training.on_model_replicated(lambda model: self.pairing.made(model))
        training.on_sharding(lambda *told: self.pairing.pair(*told))
        training.on_backward_end(backward_ended, self.recorder.left_call)
        training.on_join_notices(outstanding.keep)

    @cached_property
    def models(self) -> Models:
        """Observes the models of DDP, from the first on."""
        from .ddp import Models

        return Models(self.recorder, self.level, self.verdict)

    @cached_property
    def pairing(self) -> PositionPairing:
        """Notes what wrappers of models pair by position."""
        from .replicas.pairing import PositionPairing

        return PositionPairing(self.recorder)

    def _record_values(self) -> None:
        if self.values is not None:
            self.values.observe()

    def _watch_branches(self) -> None:
        if self.branches is not None:
            self.forks.on_own_rank(self.branches.begin)
            os.register_at_fork(after_in_child=self.branches.detach)
            self.branches.begin()

    def _meet_nodes(self) -> None:
        if os.environ.get(MEET):
            from .process import meeting

            meeting.meet_nodes(self.directory)

    def _check_replicas(self) -> None:
        def adopt() -> None:
            if "replicas" in vars(self):
                self.replicas.adopt()

        training.on_model_replicated(lambda model: self.replicas.replicated(model))
        self.forks.on_own_rank(adopt)
        if os.environ.get(CHECKS):
            from .checks.pipeline import REPLICAS, wants

            if wants(REPLICAS):
                self.replicas.observe()

    @cached_property
    def replicas(self) -> ReplicaCheck:
        """The check of replicas, made at the first need: when it is asked for, or a model of DDP is
        made, which it knows then when a precheck begins."""
        from .replicas.check import ReplicaCheck

        return ReplicaCheck(self.recorder, self.directory / "ranks", self.gradients)

    @cached_property
    def gradients(self) -> ReducedGradients:
        """Keeps which gradients were reduced, and over which groups."""
        from .replicas.reduced_gradients import ReducedGradients

        return ReducedGradients()

    def take_faults(self) -> None:
        """The plan has more faults than at the start: they happen in groups made from now on."""
        from .inject import injector

        if self.injector is not None:
            injector.extend(self.injector, self.directory, self.groups)
        else:
            self._plan_faults()

    def _take_heads_faults(self) -> None:
        """The nodes have met; the plan of the head is here, if it has one."""
        from ..record.runs.run_directory import FAULTS_PLAN

        if (self.directory / FAULTS_PLAN).exists():
            self.take_faults()

    def _plan_faults(self) -> None:
        """Make things go wrong on purpose; in all other runs nothing of it is loaded."""
        from .inject.injector import begin

        self.injector = begin(self.recorder, self.directory, self.groups)

    def _begin(self) -> None:
        """Start the threads of a rank: now, and again in a forked child that becomes one."""
        last_words.open_to_all()
        self._heartbeat = Heartbeat(self.recorder, self.unwaited, self._look)
        self._heartbeat.start()
        self.last_words.begin()

    def _look(self) -> None:
        """With every heartbeat."""
        if lost_pages() and not self._told_of_lost_pages:
            self._told_of_lost_pages = True
            # A supervisor sees it, and says it in the report.
            text = (
                "the flight record was cut short, or its disk fails: "
                "what this rank does is not recorded"
            )
            rank_log.put("own_fault", "warning", {"message": text}, printed=True)
            if STARTED not in os.environ:
                say(f"{text}; the program goes on")
        self.verdict.look()
        if "groups" in vars(self):
            self.groups.timeouts.look()
        self.breakpoints.look()
        if self.branches is not None:
            self.branches.look()
        if self.injector is not None:
            self.injector.look()

    def come_to_rest(self) -> None:
        """The process ends, and has run all else that was to run then."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self.branches is not None:
            self.branches.rest()
        ended_well = not (self.exits.failed or self.verdict.was_raised)
        if ended_well:
            # A program that never asks for what its GPU does ends well: no other rank would tell.
            outstanding.poll_streams()
            numbers = outstanding.unfinished()
            if numbers:
                self.recorder.note(UnfinishedNote(numbers), "ended before its GPU was through")
        self.unwaited.last_report(ended_well)


def _branch_watch(directory: Path) -> BranchWatch | None:
    """Returns what follows the branches of the program; None where nobody asks."""
    if not os.environ.get(WHY):
        return None
    from .record.branches import BranchWatch

    return BranchWatch(directory)


def _value_recorder(recorder: Recorder, directory: Path) -> ValueRecorder | None:
    """Returns what records values; None where nobody asks."""
    every = os.environ.get(VALUES, "")
    if not every.isdecimal() or not int(every):
        return None
    from .replicas.values import ValueRecorder

    return ValueRecorder(recorder, directory / "ranks", int(every))


def _part_off(recorder: Recorder) -> Callable[[probe.WatchedPart], None]:
    """The supervisor says it, once for all ranks; without one, the process itself does."""

    def say_off(part: probe.WatchedPart) -> None:
        sentence = f"{part.lost}: {part.why}"
        recorder.part_off(part.name, sentence, part.gaps)
        if STARTED not in os.environ:
            say(sentence)

    return say_off


def _note_not_in_group(recorder: Recorder) -> Callable[[str], None]:
    noted: set[tuple[int, str]] = set()

    def note(op_name: str) -> None:
        site = recorder.safe_site(sys._getframe(2))
        if (site, op_name) not in noted:
            noted.add((site, op_name))
            message = f"{op_name} on a group this rank is not in"
            recorder.note(NotInGroupNote(op_name), message, site)

    return note


def _note_data_end(recorder: Recorder) -> Callable[[int], None]:
    def note(batches: int) -> None:
        if not recorder.writer.heap_half_full:  # thousands of epochs must not fill the record
            site = recorder.safe_site(sys._getframe(2))
            text = f"its DataLoader ended after {batches} batches"
            recorder.note(DataExhaustedNote(batches), text, site)

    return note


def store_watch(recorder: Recorder) -> Callable[[str, Any, Any], Any]:
    """Puts the waits of this process for stores on record."""
    details: dict[tuple[str, str, str], int] = {}

    def detail_of(op: str, store: Any, keys: Any) -> int:
        names = [keys] if isinstance(keys, (str, bytes)) else list(keys)[:8]
        key = (op, ", ".join(map(str, names)), type(store).__name__)
        if key not in details and len(details) >= MOST_STORE_KEYS:
            key = (op, "", key[2])
        if key not in details:
            details[key] = recorder.detail({"op": op, "key": key[1], "store": key[2]})
        return details[key]

    @contextlib.contextmanager
    def watch(op: str, store: Any, keys: Any) -> Iterator[None]:
        slot = None
        with contextlib.suppress(Exception):
            # Within an initialisation it is a part of that, which is on record already.
            if not recorder.writer.is_waiting(threading.get_ident()):
                site = recorder.site(sys._getframe(2))
                detail = detail_of(op, store, keys)
                slot = recorder.writer.enter(int(Activity.STORE), 0, detail, site)
        try:
            yield
        finally:
            if slot is not None:
                recorder.writer.leave(slot)

    return watch
