"""The parameters of an optimiser that must be equal on several ranks, as far as that is known.

The parameters of each DDP model over its group; the DTensors that are replicated along an axis of a
device mesh, over the group of that axis; and where there is no DDP model and `replicas` was asked
for by name, every parameter whose gradient a group has summed up before its first step, over that
group, for as long as that goes on before each further step. What a program seems to have forgotten
to sum up so (`forgotten`) is taken for a replica as long as it was equal at the start: that it no
longer is, is a warning. All else may be a part of a model, or one of many.

An optimiser may leave out parameters of a DDP model, each rank others, where every rank steps its
share and sends it to the rest; or one rank alone leaves out what the others train, which is a
mistake. Either way all of the model must be equal again by the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..group.checked_group import CheckedGroup
from ..record.recorder import GroupRecord
from . import parameter_names, quantities
from .forgotten import forgotten
from .quantities import Axis
from .reduced_gradients import ReducedGradients

Named = list[tuple[str, torch.Tensor]]
BY_GRADIENTS = -1
"""Stands for the model where only their gradients tell that parameters are replicas."""
BY_PLACEMENT = -2
"""The same, where DTensors say themselves that they are."""
BY_EQUALITY = -3
"""The same, where they are equal at the start, and gradients of others like them are summed."""


@dataclass(slots=True)
class DdpModel:
    """A DDP model; when it was made, how many collectives its group had issued, and the names of
    the parameters whose gradients it brings together."""

    reference: weakref.ref[DistributedDataParallel]
    issued: int | None
    trained: frozenset[str]
    synchronised: int = 0
    """Its forwards so far whose backward brings gradients together."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Parameters that are said to be equal on the ranks of a group: along an axis, or whole.
    `is_part`: their DDP model has more. `like`: what those are called that they are taken for
    replicas by."""

    model: int
    group: GroupRecord
    named: Named
    axis: Axis | None = None
    is_part: bool = False
    like: Sequence[str] = ()


def declared_by(
    optimizer: Optimizer,
    parameters: Sequence[torch.Tensor],
    models: Sequence[DdpModel],
    gradients: ReducedGradients | None,
) -> Iterator[Declared]:
    """Yields what is known of the `parameters` that this optimiser trains."""
    plain = [one for one in parameters if quantities.part(one, None) is not None]
    mine = {id(one) for one in plain}
    for number, known in enumerate(models):
        model = known.reference()
        group: Any = getattr(model, "process_group", None)
        if isinstance(group, CheckedGroup):
            whole = replicated_by(known, mine)
            named = [(name, one) for name, one in whole if id(one) in mine]
            yield Declared(number, group._record, named, is_part=len(named) < len(whole))
    if not models and gradients is not None:
        yield from _by_gradients(optimizer, plain, gradients)
    if len(plain) < len(parameters):
        yield from _by_placement(optimizer, parameters)


def replicated_by(known: DdpModel, mine: Collection[int]) -> Named:
    """The parameters that must be equal by a DDP model: those whose gradients it brings together,
    and those that an optimiser trains (`mine`: their ids) though it did not do so at first."""
    model = known.reference()
    if model is None:
        return []
    ignored = getattr(model, "parameters_to_ignore", ())
    return [
        (name, one)
        for name, one in model.module.named_parameters()
        if name not in ignored and (id(one) in mine or name in known.trained)
    ]


def _by_gradients(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], gradients: ReducedGradients
) -> Iterator[Declared]:
    reduced: dict[GroupRecord, dict[int, torch.Tensor]] = {}
    every = [one.grad for one in parameters]
    for group in gradients.groups():
        held = zip(parameters, gradients.held(group, every), strict=True)
        reduced[group] = {id(one): one for one, known in held if known}
    names = parameter_names.find_whole(optimizer) if any(reduced.values()) else None
    if names is None:
        return
    trained = {id(one) for one in parameters if one.grad is not None}
    modules = parameter_names.modules()
    of_all = [one.grad for each in modules for one in each.parameters(recurse=False) if one.is_leaf]
    for group, of_group in reduced.items():
        yield Declared(BY_GRADIENTS, group, [(names[key], one) for key, one in of_group.items()])
        if gradients.passes_activations(group, [*every, *of_all]):
            left_out, like = forgotten(modules, trained, reduced, group)
            named = [(names[id(one)], one) for one in parameters if id(one) in left_out]
            summed = [names[key] for key in of_group if key in like]
            yield Declared(BY_EQUALITY, group, named, like=summed)


def _by_placement(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> Iterator[Declared]:
    replicated: dict[Axis, list[torch.Tensor]] = {}
    for one in parameters:
        for axis in quantities.axes_of(one):
            if quantities.part(one, axis) is not None:
                replicated.setdefault(axis, []).append(one)
    names = parameter_names.find(optimizer) if replicated else {}
    for axis, tensors in replicated.items():
        if isinstance(axis.group, CheckedGroup):
            named = [(names[id(one)], one) for one in tensors]
            yield Declared(BY_PLACEMENT, axis.group._record, named, axis)
