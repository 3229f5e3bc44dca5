"""`--check replicas`: puts digests of the parameters on record around optimiser steps.

What must be equal is what the program or the user has declared so: the parameters of each DDP model
over its group, and where there is no DDP model and `replicas` was asked for by name, those of every
optimiser over the default group, unless the ranks seem to share out one model: they send messages,
talk in smaller groups, or hold shards. A rank only writes. That they differ is found by the
supervisor (`diagnosis.replicas`), so that no rank ever waits for another one.

Steps of different ranks belong together by the collectives of the group that came before them, not
by their count: a rank whose inputs ended early (DDP's join()) makes fewer steps, rightly so.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..record.replicas import NOTE, ReplicaWriter, file_name
from ..record.signature import hash64
from . import digest, inspection, parameter_names, rank_log, torch_private
from .checked_group import CheckedGroup
from .recorder import GroupRecord, Recorder, report_own_fault

REPLICAS = "replicas"
EVERY = "DISTDEBUG_CHECK_EVERY"
MOST_FILES = 64
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Named = list[tuple[str, torch.Tensor]]


def observe(recorder: Recorder, directory: Path) -> None:
    """From now on the steps of all optimisers are looked at, if the check is asked for."""
    if not inspection.wants(REPLICAS):
        return
    check = ReplicaCheck(recorder, directory / "ranks", REPLICAS in inspection.asked())
    torch_private.on_model_replicated(DistributedDataParallel, check.replicated)
    torch_private.on_models_averaged(check.averaged)
    torch_private.on_optimizer_steps(check.before_step, check.after_step)


def is_due(moment: int, every: int) -> bool:
    """For one moment in `every`, spread evenly, and for the same on all ranks: by the count of its
    own steps, a rank that has left one out would never be compared again."""
    return ((moment + 1) * _GOLDEN & _MASK) * every >> 64 == 0


@dataclass(slots=True)
class Replica:
    """Parameters of one optimiser that must be the same on all ranks of a group."""

    key: tuple[object, ...]
    group: GroupRecord
    tensors: Sequence[torch.Tensor]
    writer: ReplicaWriter
    moment: tuple[int, int] = (-1, 0)


@dataclass(slots=True)
class Steps:
    """What is known of one optimiser."""

    made: int = 0
    seen: tuple[int, ...] = ()
    replicas: list[Replica] = field(default_factory=list)


class ReplicaCheck:
    """The optimisers of this process. `declared`: the user says that they hold replicas."""

    def __init__(self, recorder: Recorder, directory: Path, declared: bool) -> None:
        self._recorder = recorder
        self._directory = directory
        self._declared = declared
        every = os.environ.get(EVERY, "")
        self._every = max(1, int(every)) if every.isdecimal() else 1
        self._pid = os.getpid()
        self._steps: weakref.WeakKeyDictionary[Optimizer, Steps] = weakref.WeakKeyDictionary()
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self._namesakes: dict[tuple[object, ...], int] = {}
        self._files = 0
        self._off = False

    # -- what torch tells ----------------------------------------------------------------------

    def replicated(self, model: DistributedDataParallel) -> None:
        """A DDP model was made."""
        self._models.append(weakref.ref(model))

    def averaged(self) -> None:
        """The program averages its models from time to time: in between they may well differ."""
        if not self._off:
            rank_log.write("the check of replicas is off: the program averages its models itself")
        self._off = True

    def before_step(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to make a step."""
        if optimizer not in self._steps:
            self._guarded(optimizer, sys._getframe(1), made=0)

    def after_step(self, optimizer: Optimizer) -> None:
        """`optimizer` has made a step."""
        self._guarded(optimizer, sys._getframe(1), made=1)

    def _guarded(self, optimizer: Optimizer, frame: FrameType, made: int) -> None:
        if self._off or os.getpid() != self._pid or torch_private.cannot_look(frame):
            return
        try:
            self._look(optimizer, frame, made)
        except Exception as error:
            self._off = True
            report_own_fault("the check of replicas", error)

    # -- a step --------------------------------------------------------------------------------

    def _look(self, optimizer: Optimizer, frame: FrameType, made: int) -> None:
        steps = self._steps.setdefault(optimizer, Steps())
        steps.made += made
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        seen = (len(self._models), *map(id, parameters))
        if seen != steps.seen:
            steps.seen = seen
            plain = [one for one in parameters if _is_plain(one)]
            steps.replicas = list(self._replicas(optimizer, plain, steps.replicas))
        site = self._recorder.safe_site(frame) if steps.replicas else 0
        for replica in steps.replicas:
            issued, turn = replica.group.slot.issued, 0
            if issued == replica.moment[0]:
                turn = replica.moment[1] + 1
            replica.moment = (issued, turn)
            if is_due(issued + turn, self._every):
                found = digest.digests(replica.tensors)
                replica.writer.append(replica.moment, steps.made, site, time.monotonic_ns(), found)

    # -- what must be equal --------------------------------------------------------------------

    def _replicas(
        self, optimizer: Optimizer, parameters: list[torch.Tensor], before: Sequence[Replica]
    ) -> Iterator[Replica]:
        for number, group, named in self._declarations(optimizer, parameters):
            if named and len(group.ranks) > 1:
                made = self._replica(number, group, named, before)
                if made is not None:
                    yield made

    def _declarations(
        self, optimizer: Optimizer, parameters: list[torch.Tensor]
    ) -> Iterator[tuple[int, GroupRecord, Named]]:
        mine = {id(one) for one in parameters}
        for number, reference in enumerate(self._models):
            model = reference()
            group: Any = getattr(model, "process_group", None)
            if model is not None and isinstance(group, CheckedGroup):
                ignored = getattr(model, "parameters_to_ignore", ())
                named = [
                    (name, one)
                    for name, one in model.module.named_parameters()
                    if id(one) in mine and name not in ignored
                ]
                yield number, group._record, named
        world = self._recorder.world
        if not self._models and self._declared and world is not None:
            names = None if self._is_shared_out(world) else parameter_names.find(optimizer)
            if names is not None:
                yield -1, world, [(names[id(one)], one) for one in parameters]

    def _is_shared_out(self, world: GroupRecord) -> bool:
        """Whether the ranks do different things, as the stages of a pipeline do."""
        return self._recorder.has_messages or any(
            len(group.ranks) < len(world.ranks) and group.slot.issued
            for group in inspection.groups()
        )

    def _replica(
        self, number: int, group: GroupRecord, named: Named, before: Sequence[Replica]
    ) -> Replica | None:
        layout = tuple((name, str(one.dtype), tuple(one.shape)) for name, one in named)
        key = (group.name, group.incarnation, number, hash64(layout))
        tensors = [one for _, one in named]
        for known in before:  # another model was made, or other parameters were added
            if known.key == key and all(map(is_, known.tensors, tensors)):
                return known
        namesake = self._namesakes.get(key, 0)
        self._namesakes[key] = namesake + 1
        if self._files >= MOST_FILES:
            return None  # a program that makes its optimisers anew all the time
        text = f"{number}.{namesake}.{key[-1]:016x}"
        names = [name[:200] for name, _ in named]
        group_key = (group.name, group.incarnation)
        while True:
            name = file_name(self._pid, self._files)
            self._files += 1
            try:
                writer = ReplicaWriter(self._directory / name, group_key, text, names)
                break
            except FileExistsError:
                continue  # of a process of that number before
        self._recorder.note(NOTE, "digests of parameters", file=name)
        return Replica(key, group, tensors, writer)


def _is_plain(parameter: Any) -> bool:
    """Whether it is whole on this rank, with elements that can be read."""
    return (
        type(parameter.data) is torch.Tensor
        and parameter.layout is torch.strided
        and parameter.device.type != "meta"
        and not parameter.is_quantized
        and parameter.requires_grad
    )
