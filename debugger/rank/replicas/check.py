"""`--check replicas`: puts digests of replicas on record around optimiser steps.

What must be equal is what is known to be so (`declarations`). With the parameters all that a step
makes them of is compared (`quantities`). A rank only writes. That they differ is found by the
supervisor (`diagnosis.rules.divergence`), so that no rank ever waits for another.

Steps of different ranks belong together by the collectives of the group that came before them, not
by their count: a rank whose inputs ended early (DDP's join()) makes fewer steps, rightly so.

A model whose ranks step on their own (local SGD, fine-tuning of the module inside) has no replicas
from then on: it is left alone after the first step that no collective came before. The digest after
an optimiser's first step waits for the second to tell which kind it is. Where one rank does so and
the others do not, that is no choice but a mistake; so a rank goes on for some steps and says that
it has been on its own, and the diagnosis, which sees all ranks, tells the one from the other.

Where one step in K is compared, so are the first one and the next one after a load or a save. Not
the load itself: one rank may load, and send to the others what it has. Ranks that load together
look at the same step, and the look of one that does so alone has none to be compared with.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ...record.notes import ReplicasNote
from ...record.replicas import (
    ACTIVATION,
    ALONE,
    APART,
    BUFFER,
    BUSY,
    EVALUATED,
    LOADED,
    NO_SYNC,
    RANDOM_STATE,
    SUMMING,
    UNUSED,
    ReplicaWriter,
    file_name,
)
from ...record.signature import hash64
from ...record.snapshot import Column
from ..group.checked_group import CheckedGroup
from ..log import rank_log
from ..log.rank_log import report_own_fault
from ..record.recorder import GroupRecord, Recorder
from ..torch_private import training
from . import quantities
from .declarations import (
    BY_EQUALITY,
    BY_GRADIENTS,
    BY_PLACEMENT,
    BY_TABLE,
    BY_WORD,
    DdpModel,
    Declared,
    declared_by,
)
from .placed_inputs import SAMPLES, PlacedInputs
from .quantities import Axis
from .reduced_gradients import ReducedGradients

EVERY = "DISTDEBUG_CHECK_EVERY"
MOST_FILES = 64
MOST_APART = 16
"""Digests of a model that is put on record after its rank has stepped on its own, and of what is
taken for one by equality."""
MOST_OFTEN = 1 << 20
"""Elements of frozen parameters that are looked at as often as all others."""
SELDOM = 100
"""One in so many moments at which more of them are looked at."""
_REDUCED = 1
"""Stands for a digest of what its group has brought together itself."""

Row = tuple[tuple[int, int], int, int, int, Sequence[int], Sequence[float]]
"""A row for `ReplicaWriter.append`."""
Stamp = tuple[tuple[int, int], int, int]
"""When a digest is taken (see `snapshot.Digest`), its step and its site."""


def is_due(moment: int, every: int) -> bool:
    """For one moment in `every`, spread evenly, and for the same on all ranks: by the count of its
    own steps, a rank that has left one out would never be compared again."""
    return ((moment + 1) * quantities.ODD & quantities.MASK) * every >> 64 == 0


@dataclass(slots=True)
class Replica:
    """Parameters that must be the same on all ranks of a group. The optimisers of just these share
    it: a program may make a new one for each epoch."""

    key: tuple[object, ...]
    model: int
    group: GroupRecord
    tensors: list[weakref.ref[torch.Tensor]]
    axis: Axis | None
    columns: list[Column]
    samples: list[int]
    writer: ReplicaWriter
    last: Stamp = ((-1, 0), 0, 0)
    withheld: Row | None = None
    use: str = ""
    fresh: bool = True
    """Whether nothing was looked at since the check has begun."""
    overdue: bool = True
    """Whether its next step is looked at whatever the interval is: the first one, or the first
    since a load or a save."""
    loaded: bool = False
    """Whether something was loaded into it since its last step."""
    reduced: int = 0
    """The count of reduced gradients at its last step."""
    left_alone: bool = False
    apart: int = 0
    """Digests since it was left alone, or of what is one by equality."""
    parameters_alone: bool = False
    """Whether the gradients and state of a step are left out: they may be the next one's by
    then."""
    of_whole: list[tuple[str, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    whole: Replica | None = None
    """For a part of a model: all of that, compared before the next step."""
    summed: Replica | None = None
    """For a replica by equality: the one whose gradients the same group sums."""
    is_seldom: bool = False
    """Whether it is looked at once in `SELDOM` moments at most."""
    brought_together: set[int] = field(default_factory=set)
    """For a table: the places of parameters that its group has summed up, or their gradients."""
    exchanges: int = -1
    """The count of other exchanges of its ranks when it was left alone."""
    is_busy: bool = False
    carried: int = 0
    """For a table: the tensors that its group had carried at its begin."""

    def next_moment(self) -> tuple[int, int]:
        """Returns the moment of a digest that is taken now."""
        issued, (before, turn) = self.group.slot.issued, self.last[0]
        return issued, turn + 1 if issued == before else 0

    def holds(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether it is of exactly these."""
        same = (known() is one for known, one in zip(self.tensors, tensors, strict=False))
        return len(tensors) == len(self.tensors) and all(same)


@dataclass(slots=True)
class Steps:
    """The steps of one optimiser."""

    made: int = 0
    seen: tuple[int, ...] = ()
    parameters: Sequence[torch.Tensor] = ()
    """Kept, so that the ids in `seen` are of no others."""
    replicas: list[Replica] = field(default_factory=list)


class ReplicaCheck:
    """The optimisers of this process. `gradients`: which were reduced.

    It looks from the start where it is asked for, or for a while (`look_meanwhile`). Of a model
    that was trained before, nobody knows then whether its ranks step on their own: what it is
    before a step counts once that step was made with the others.
    """

    def __init__(self, recorder: Recorder, directory: Path, gradients: ReducedGradients) -> None:
        self._recorder = recorder
        self._directory = directory
        self._gradients = gradients
        every = os.environ.get(EVERY, "")
        self._every = max(1, int(every)) if every.isdecimal() else 1
        self._placed = PlacedInputs(lambda steps: not self._off and steps % self._every == 0)
        self._placed_in: dict[Axis, tuple[ReplicaWriter | None, int]] = {}
        """By axis, where inputs are put on record, and how many."""
        self._random_in: dict[GroupRecord, tuple[ReplicaWriter | None, int]] = {}
        """By group, where random states are put on record, and the last step of which."""
        self._pid = os.getpid()
        self._steps: Any = WeakIdKeyDictionary()  # by id: an optimiser need not be hashable
        self._models: list[DdpModel] = []
        self._replicas: list[Replica] = []
        self._stepped: dict[int, dict[int, tuple[int, int]]] = {}
        """By model, and the parameter's id: the collectives issued when it was stepped last, and
        the model's synchronised forwards."""
        self._local: set[int] = set()
        """The models whose ranks step on their own."""
        self._namesakes: dict[tuple[object, ...], int] = {}
        self._files = 0
        self._full = False
        self._off = False
        self._is_asked = False
        self._late = False
        self._hears_forwards = False
        self._axes: weakref.WeakKeyDictionary[GroupRecord, str] = weakref.WeakKeyDictionary()
        """What the program calls the dimension of a mesh along which a group's ranks are: torch
        describes only those groups so that it has made for one."""
        self._evaluating: dict[int, Callable[[], None]] = {}
        """By model, what ends waiting for its first forward of an evaluation."""
        self._said: list[tuple[GroupRecord, list[tuple[str, torch.Tensor]]]] = []
        """What the program says that it is replicated."""
        self._own: Any = WeakIdKeyDictionary()
        """The tensors of which it says that they are not."""

    def observe(self) -> None:
        """The check is asked for: from now on the steps of all optimisers are looked at."""
        self._is_asked = True
        training.on_statistics(self.forward)
        training.on_models_averaged(self.averaged)
        training.on_mesh(self.meshed)
        training.on_modes(self.switched)
        training.on_saves(self.saved)
        training.on_loads(self.loaded)
        training.on_optimizer_steps(self.before_step, self.after_step)
        self._placed.observe()

    def look_meanwhile(self) -> Callable[[], None]:
        """Looks at the steps of all optimisers until what is returned is called. Nothing changes
        where the check is asked for."""
        if self._is_asked:
            return lambda: None
        if not self._hears_forwards:
            self._hears_forwards = True
            training.on_statistics(self.forward)
        self._late, self._every, self._pid = True, 1, os.getpid()
        self._begin_anew()
        for replica in self._replicas:
            replica.left_alone, replica.apart, replica.fresh = False, 0, True
        for number, known in enumerate(self._models):
            model = known.reference()
            group: Any = getattr(model, "process_group", None)
            if model is not None and isinstance(group, CheckedGroup):
                now = (group._record.slot.issued, known.synchronised)
                ids = map(id, model.module.parameters())
                self._stepped[number] = dict.fromkeys(ids, now)
        if training.averages_models():
            self.averaged()
        unhook = training.on_optimizer_steps(self.before_step, self.after_step)

        def end() -> None:
            unhook()
            self._begin_anew()

        return end

    def _begin_anew(self) -> None:
        self._steps.clear()
        self._stepped.clear()
        self._local.clear()
        for replica in self._replicas:
            replica.withheld = None
        self._gradients.forget_all()

    def adopt(self) -> None:
        """This process was forked, and is a rank of its own now: what the parent has trained is
        none of its business."""
        self._pid = os.getpid()
        self._begin_anew()
        self._models.clear()
        self._replicas.clear()
        self._namesakes.clear()
        self._placed_in.clear()
        self._random_in.clear()
        self._files = 0

    # -- what torch tells ----------------------------------------------------------------------

    def replicated(self, model: DistributedDataParallel) -> None:
        """A DDP model was made."""
        group: Any = getattr(model, "process_group", None)
        issued = group._record.slot.issued if isinstance(group, CheckedGroup) else None
        named = model.module.named_parameters(remove_duplicate=False)
        trained = frozenset(name for name, one in named if one.requires_grad)
        self._models.append(DdpModel(weakref.ref(model), issued, trained))
        self._gradients.keep_no_sums()  # they are not asked for any more

    def forward(self, logger: Any) -> None:
        """A forward of the DDP model with this logger has begun, and it is not within no_sync()."""
        for known in self._models:
            if getattr(known.reference(), "logger", None) is logger:
                known.synchronised += 1

    def say(self, what: torch.nn.Module | torch.Tensor, group: Any) -> None:
        """The program says that a module's parameters, or a tensor, are replicated on a group, or
        (None) nowhere."""
        if isinstance(what, torch.Tensor):
            named = [("tensor", what)]
        else:
            named = [(name, one) for name, one in what.named_parameters()]
        if group is None:
            self._own.update((one, None) for _, one in named)
        elif isinstance(group, CheckedGroup):
            self._said.append((group._record, named))

    def meshed(self, mesh: Any) -> None:
        """A device mesh was made."""
        with contextlib.suppress(Exception):  # a mesh without groups, or that this rank is not in
            for dim, name in enumerate(mesh.mesh_dim_names or ()):
                group: Any = mesh.get_group(dim)
                if isinstance(group, CheckedGroup):
                    self._axes.setdefault(group._record, str(name))

    def switched(self, module: torch.nn.Module, mode: bool) -> None:
        """A module was told to train, or to evaluate. DDP brings running statistics together in
        its own forward alone, so what is compared is what the module inside of it begins with."""
        for number, known in enumerate(self._models):
            model = known.reference()
            if model is None or module not in (model, model.module):
                continue
            end = self._evaluating.pop(number, None)
            if end is not None:
                end()
            if not mode and not self._off and training.running_statistics(model.module):
                hear = functools.partial(self._evaluates, number, model.module)
                self._evaluating[number] = training.on_forwards(hear)

    def saved(self) -> None:
        """Something was saved: perhaps a checkpoint."""
        for replica in self._replicas:
            replica.overdue = True

    def loaded(self, tensors: Collection[torch.Tensor]) -> None:
        """A state was loaded into a module, or an optimiser, with these parameters."""
        ids = {id(one) for one in tensors}
        for replica in self._replicas:
            if any(id(known()) in ids for known in replica.tensors):
                replica.overdue = replica.loaded = True

    def _evaluates(self, number: int, inner: torch.nn.Module, module: torch.nn.Module) -> None:
        if module is not inner or torch.compiler.is_compiling() or training.capturing():
            return
        self._evaluating.pop(number, lambda: None)()
        model = self._models[number].reference()
        group: Any = getattr(model, "process_group", None)
        if self._off or os.getpid() != self._pid or not isinstance(group, CheckedGroup):
            return
        try:
            site = self._recorder.safe_site(sys._getframe(1))
            named = training.running_statistics(inner)
            traits = [()] * len(named)
            declared = Declared(number, group._record, named, use=EVALUATED, traits=traits)
            made = self._replica(None, declared, parameters_alone=True)
            steps = [one.last[1] for one in self._replicas if one.model == number]
            if made is not None:
                made.last = (made.next_moment(), 0, site)
                tensors = [one for _, one in named]
                wanted = len(named), made.samples
                values, samples = quantities.read(None, tensors, None, False, *wanted)
                step, now = max(steps, default=0), time.monotonic_ns()
                made.writer.append(made.last[0], step, site, now, values, samples)
        except Exception as error:
            self._off = True
            report_own_fault("the check of replicas", error)

    def averaged(self) -> None:
        """The program averages its models from time to time: in between they may well differ."""
        if not self._off:
            rank_log.write("the check of replicas is off: the program averages its models itself")
        self._off = True

    def before_step(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to make a step."""
        steps = self._steps.get(optimizer)
        if (
            steps is None
            or self._placed.are_used
            or any(replica.of_whole or replica.model == BY_TABLE for replica in steps.replicas)
        ):
            self._guarded(optimizer, sys._getframe(1), made=0)

    def after_step(self, optimizer: Optimizer) -> None:
        """`optimizer` has made a step."""
        self._guarded(optimizer, sys._getframe(1), made=1)

    def _guarded(self, optimizer: Optimizer, frame: FrameType, made: int) -> None:
        if self._off or os.getpid() != self._pid or training.cannot_look(frame):
            return
        try:
            self._look(optimizer, frame, made)
        except Exception as error:
            self._off = True
            report_own_fault("the check of replicas", error)

    # -- a step --------------------------------------------------------------------------------

    def _look(self, optimizer: Optimizer, frame: FrameType, made: int) -> None:
        steps: Steps = self._steps.setdefault(optimizer, Steps())
        steps.made += made
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        told = len(self._said) + len(self._own)
        seen = (len(self._models), told, *map(id, parameters))
        if seen != steps.seen:
            steps.seen, steps.parameters = seen, parameters
            trained = [one for one in parameters if one.requires_grad]
            steps.replicas = list(self._replicas_of(optimizer, trained))
        shown = steps.replicas or self._placed.are_used
        site = self._recorder.safe_site(frame) if shown else 0
        if self._placed.are_used and not made:
            self._add_inputs(parameters, steps.made + 1, site)
        for replica in steps.replicas:
            tensors = [one for known in replica.tensors if (one := known()) is not None]
            if replica.model == BY_TABLE:
                if not made:  # until then ranks may step shares of a model, and exchange them
                    self._tabulate(replica, optimizer, tensors, steps.made, site)
                continue
            alone = bool(made) and self._is_local(replica, tensors)
            if alone:
                replica.withheld = None
                if not self._is_left_alone(replica):
                    replica.left_alone = True
                    self._gradients.keep_sums()
                    if replica.model >= 0:
                        self._local.add(replica.model)
                    rank_log.write("the check of replicas is off: steps without synchronisation")
            if self._is_left_alone(replica):
                replica.withheld = None
                was_busy = replica.is_busy
                replica.is_busy = was_busy or self._may_be_averaged(replica, tensors)
                if made and (replica.apart < MOST_APART or replica.is_busy is not was_busy):
                    replica.apart += 1
                    model = self._models[replica.model].reference() if replica.model >= 0 else None
                    below = alone and not getattr(model, "require_forward_param_sync", True)
                    flags = APART | ALONE * alone | BUSY * replica.is_busy | NO_SYNC * below
                    self._add(replica, optimizer, tensors, steps.made, site, flags)
            elif made or replica.fresh:
                if replica.model == BY_EQUALITY:
                    if replica.apart == MOST_APART:
                        continue
                    replica.apart += 1
                self._add(replica, optimizer, tensors, steps.made, site)
            elif replica.of_whole:
                self._add_whole(replica, optimizer)
        if made:
            self._gradients.forget()

    def _add(
        self,
        replica: Replica,
        optimizer: Optimizer,
        tensors: Sequence[torch.Tensor],
        step: int,
        site: int,
        flags: int = 0,
    ) -> None:
        replica.last, replica.fresh = (replica.next_moment(), step, site), False
        self._take(replica, optimizer, tensors, replica.last, flags | LOADED * replica.loaded)
        replica.loaded = False

    def _add_inputs(self, parameters: Sequence[torch.Tensor], step: int, site: int) -> None:
        """Puts on record what was declared to be replicated since the last step. Ranks that have
        made other numbers of these are not compared: one may have logged something."""
        for axis, (heard, inputs) in self._placed.take(parameters).items():
            group: Any = axis.group
            if not isinstance(group, CheckedGroup) or len(group._record.ranks) < 2:
                continue
            if axis not in self._placed_in:
                columns = [
                    Column(ACTIVATION, f"{one.name()} #{place}"[:200].strip())
                    for place, one in enumerate(inputs)
                ]
                elements = [(one.dtype, one.numel) for one in inputs]
                layout = hash64((tuple(columns), tuple(elements)))
                key = f"{BY_PLACEMENT}.{axis.dim}.inputs.{layout:016x}"
                samples = [SAMPLES] * len(inputs)
                made = self._file(
                    group._record, key, columns, samples, axis.name, elements=elements
                )
                self._placed_in[axis] = made, len(inputs)
            writer, count = self._placed_in[axis]
            values = [*(one.value for one in inputs), *[0] * count][:count]
            rows = [number for one in inputs[:count] for number in one.samples]
            rows += [math.nan] * (SAMPLES * count - len(rows))
            if writer is not None:
                moment = (group._record.slot.issued, heard)
                writer.append(moment, step, site, time.monotonic_ns(), values, rows)
            self._add_random_states(group._record, axis.name, step, site)

    def _add_random_states(self, group: GroupRecord, axis: str, step: int, site: int) -> None:
        """Puts on record by what dropout draws where a group has parts of one model: what is whole
        on all of its ranks must be dropped alike."""
        states = quantities.random_states()
        writer, last = self._random_in.get(group, (None, 0))
        if not last:
            columns = [Column(RANDOM_STATE, device) for device in states]
            traits = [()] * len(columns)
            known = (group, "random", columns, (), axis)
            writer = self._file(*known, use=RANDOM_STATE, traits=traits)
        if writer is not None and step > last:
            writer.append((step, 0), step, site, time.monotonic_ns(), [*states.values()])
        self._random_in[group] = writer, step

    def _tabulate(
        self,
        table: Replica,
        optimizer: Optimizer,
        tensors: Sequence[torch.Tensor],
        step: int,
        site: int,
    ) -> None:
        gradients = self._gradients
        table.last = (table.next_moment(), step, site)
        since, table.reduced = table.reduced, gradients.count
        every = [*(one.grad for one in tensors), *tensors]
        held = gradients.held(table.group, every, since)
        count = len(tensors)
        table.brought_together |= {place % count for place, known in enumerate(held) if known}
        if not self._is_due(table, sum(table.last[0])):
            return
        table.overdue = table.overdue and not step
        local = [quantities.local(one) for one in tensors]
        parts = [one for one in local if one is not None]
        if len(parts) < count:
            return
        values, samples = quantities.read(optimizer, parts, None, False, count, table.samples)
        for place in table.brought_together:
            values[place] = _REDUCED
        flags = BUSY * (gradients.of(table.group).carried > table.carried)
        now = time.monotonic_ns()
        table.writer.append(table.last[0], step | flags, site, now, values, samples)
        if table.use not in (SUMMING, UNUSED):
            axis = self._axes.get(table.group, "")
            self._add_random_states(table.group, axis, step + 1, site)

    def _add_whole(self, part: Replica, optimizer: Optimizer) -> None:
        """Digests the whole model of which the optimiser has a part, as it is by now: the other
        ranks may have put it on record right after the last step."""
        named = [(name, one) for name, known in part.of_whole if (one := known()) is not None]
        every = [one for known in self._steps.values() for one in known.parameters]
        trained = {id(one) for one in every if one.requires_grad}
        if all(id(one) in trained for _, one in named):
            part.of_whole = []  # other optimisers have the rest
            return
        if part.whole is None:
            declared = self._as_said(Declared(part.model, part.group, named))
            part.whole = self._replica(optimizer, declared, parameters_alone=True)
        # Of several parts the first one tells: by the next one's step that has changed the whole.
        if part.whole is not None and part.whole.last[0] < part.last[0]:
            part.whole.last = part.last
            self._take(part.whole, optimizer, [one for _, one in named], part.last)

    def _take(
        self,
        replica: Replica,
        optimizer: Optimizer,
        tensors: Sequence[torch.Tensor],
        stamp: Stamp,
        flags: int = 0,
    ) -> None:
        if replica.withheld is not None:
            replica.writer.append(*replica.withheld)
            replica.withheld = None
        at, step, site = stamp
        if replica.model == BY_EQUALITY or self._is_due(replica, sum(at)):
            replica.overdue = replica.overdue and not step
            stepped = step > 0 and not replica.parameters_alone
            wanted = len(replica.columns), replica.samples
            values, samples = quantities.read(optimizer, tensors, replica.axis, stepped, *wanted)
            row = (at, step | flags, site, time.monotonic_ns(), values, samples)
            if step == (0 if self._late else 1) and not flags:
                replica.withheld = row
            else:
                replica.writer.append(*row)

    def _is_due(self, replica: Replica, moment: int) -> bool:
        every = max(self._every, SELDOM) if replica.is_seldom else self._every
        return replica.overdue or is_due(moment, every)

    # -- steps of each rank on its own ---------------------------------------------------------

    def _is_local(self, replica: Replica, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether this step was made without the other ranks."""
        if replica.model in (BY_PLACEMENT, BY_WORD):
            return False  # what is declared holds for each step
        if replica.model == BY_GRADIENTS:
            return not self._were_reduced(replica, tensors)
        if replica.model == BY_EQUALITY:
            return not self._seem_forgotten(replica, tensors)
        number, issued = replica.model, replica.group.slot.issued
        known = self._models[number]
        stepped, ids = self._stepped.setdefault(number, {}), [*map(id, tensors)]
        steps = {stepped.get(one, (-1, 0)) for one in ids}
        before, synchronised = max(steps, default=(-1, 0))
        stepped.update(dict.fromkeys(ids, (issued, known.synchronised)))
        model = known.reference()
        if model is None:
            return True
        if not model.require_forward_param_sync and known.synchronised == synchronised:
            # All forwards were within no_sync(). The last one alone may be so by mistake, in a
            # window of gradients that are brought together too early, or be one without gradients.
            return True
        if issued == known.issued:
            return False  # nobody has ever brought this model together, DDP included
        return before == issued

    def _may_be_averaged(self, replica: Replica, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether, since its first step alone, ranks may have made the parameters equal."""
        gradients = self._gradients
        if replica.exchanges < 0:
            replica.exchanges = gradients.exchanges(replica.group)
            replica.reduced = gradients.count
        exchanged = gradients.exchanges(replica.group) > replica.exchanges
        return exchanged or any(gradients.held(replica.group, tensors, replica.reduced))

    def _were_reduced(self, replica: Replica, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all gradients that this step has used were summed up since the step before."""
        since, replica.reduced = replica.reduced, self._gradients.count
        held = self._gradients.held(replica.group, [one.grad for one in tensors], since)
        return all(one.grad is None or known for one, known in zip(tensors, held, strict=True))

    def _seem_forgotten(self, replica: Replica, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether before this step, too, the gradients beside them were summed up, and neither
        their own nor they themselves."""
        gradients = self._gradients
        if replica.apart == MOST_APART:
            return True  # nothing is put on record any more
        if replica.summed is None or self._is_left_alone(replica.summed):
            return False
        since, replica.reduced = replica.reduced, gradients.count
        if not since:
            return True  # so they were declared; before that all may have been made equal
        return not any(
            gradients.held(replica.group, [*(one.grad for one in tensors), *tensors], since)
        )

    def _is_left_alone(self, replica: Replica) -> bool:
        return replica.left_alone or replica.model in self._local

    # -- what must be equal --------------------------------------------------------------------

    def _replicas_of(
        self, optimizer: Optimizer, parameters: list[torch.Tensor]
    ) -> Iterator[Replica]:
        summed = None
        known = declared_by(optimizer, parameters, self._models, self._gradients, self._axes)
        said = (Declared(BY_WORD, group, named) for group, named in self._said)
        for declared in map(self._as_said, itertools.chain(said, known)):
            if declared.model == BY_TABLE and (self._late or self._steps[optimizer].made):
                continue  # nobody knows how its columns began
            if declared.named and len(declared.group.ranks) > 1:
                alone = declared.model in (BY_EQUALITY, BY_TABLE) or declared.is_frozen
                made = self._replica(optimizer, declared, parameters_alone=alone)
                if made is not None:
                    made.of_whole = [(name, weakref.ref(one)) for name, one in declared.whole]
                    if declared.model == BY_EQUALITY:
                        made.summed = summed  # the one before is its group's
                    yield made
                summed = made

    def _as_said(self, declared: Declared) -> Declared:
        """The same without what the program says that it is no replica, or that it surely is."""
        surely = {
            id(one)
            for group, named in self._said
            for _, one in named
            if group is declared.group and declared.model in (BY_EQUALITY, BY_TABLE)
        }
        chosen = [
            place
            for place, (_, one) in enumerate(declared.named)
            if one not in self._own and id(one) not in surely
        ]
        if len(chosen) == len(declared.named):
            return declared
        return replace(
            declared,
            named=[declared.named[place] for place in chosen],
            traits=[declared.traits[place] for place in chosen if declared.traits],
        )

    def _replica(
        self, optimizer: Optimizer | None, declared: Declared, parameters_alone: bool = False
    ) -> Replica | None:
        number, group, named = declared.model, declared.group, declared.named
        layout = tuple((name, str(one.dtype), tuple(one.shape)) for name, one in named)
        key = (group.name, group.incarnation, number, declared.use, hash64(layout))
        tensors = [one for _, one in named]
        alive = [one for one in self._replicas if all(known() is not None for known in one.tensors)]
        self._replicas = alive
        columns = quantities.columns(optimizer, [name[:200] for name, _ in named], tensors)
        if declared.use == EVALUATED:
            columns = [Column(BUFFER, name[:200]) for name, _ in named]
        local = [quantities.local(one) for one in tensors]
        parts = [tensors[place] if one is None else one for place, one in enumerate(local)]
        samples = quantities.samples(parts if declared.use else tensors, declared.axis)
        if parameters_alone:
            columns, samples = columns[: len(named)], samples[: len(named)]
        for replica in alive:
            same = replica.key == key and replica.columns == columns
            if same and replica.holds(tensors):
                return replica
        namesake = self._namesakes.get(key, 0)
        self._namesakes[key] = namesake + 1
        text = f"{number}.{namesake}{declared.use}.{key[-1]:016x}"
        axis = declared.axis.name if declared.axis is not None else ""
        axis = axis or self._axes.get(group) or ("dp" if number >= 0 else "")
        models = self._models[number : number + 1] if number >= 0 else []
        unreduced = [name[:200] for one in models for name, _ in named if name not in one.trained]
        elements = [(str(one.dtype).removeprefix("torch."), one.numel()) for one in parts]
        more = (unreduced, declared.like, self._late, declared.use, declared.traits, elements)
        writer = self._file(group, text, columns, samples, axis, *more)
        if writer is None:
            return None
        references = [weakref.ref(one) for one in tensors]
        made = Replica(key, number, group, references, declared.axis, columns, samples, writer)
        made.parameters_alone, made.use = parameters_alone, declared.use
        made.is_seldom = declared.is_frozen and sum(p.numel() for p in tensors) > MOST_OFTEN
        made.carried = self._gradients.of(group).carried
        self._replicas.append(made)
        return made

    def _file(
        self,
        group: GroupRecord,
        key: str,
        columns: Sequence[Column],
        samples: Sequence[int],
        axis: str,
        *more: Any,
        **by_name: Any,
    ) -> ReplicaWriter | None:
        """Makes a file, with the further arguments of its writer, and announces it. None where a
        program makes its models anew all the time."""
        if self._files >= MOST_FILES:
            if not self._full:
                rank_log.write("the check of replicas leaves out further models", "warning")
            self._full = True
            return None
        group_key = (group.name, group.incarnation)
        while True:
            name = file_name(self._pid, self._files)
            self._files += 1
            try:
                known = (self._directory / name, group_key, key, columns, samples, axis)
                writer = ReplicaWriter(*known, *more, **by_name)
                break
            except FileExistsError:
                continue  # of a process of that number before
        self._recorder.note(ReplicasNote(name), "digests of replicas")
        return writer
