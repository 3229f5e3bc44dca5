"""The parameters of an optimiser that must be equal on several ranks, as far as that is known.

The parameters of each DDP model over its group; the DTensors that are replicated along an axis of a
device mesh, over the group of that axis; and where there is no DDP model and `replicas` was asked
for by name, every parameter whose gradient a group has summed up before its first step, over that
group, for as long as that goes on before each further step. What a program seems to have forgotten
to sum up so (`forgotten`) is taken for a replica as long as it was equal at the start: that it no
longer is, is a warning. All else may be a part of a model, or one of many.

An optimiser may leave out parameters of a DDP model, or of those whose gradients are summed up,
each rank others, where every rank steps its share and sends it to the rest; or one rank alone
leaves out what the others train, which is a mistake. Either way all of the model must be equal
again by the next step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...record.replicas import (
    CONSTANT,
    ELSEWHERE,
    EXCHANGING,
    FROZEN,
    MATRIX,
    PASSING,
    PLACED,
    SUMMING,
    UNUSED,
    is_context,
)
from ...record.wording import OF_MESH
from ..group.checked_group import CheckedGroup
from ..record.recorder import GroupRecord
from ..torch_private.training import living
from . import quantities
from .quantities import Axis
from .reduced_gradients import ReducedGradients

Named = list[tuple[str, torch.Tensor]]
BY_GRADIENTS = -1
"""Stands for the model where only their gradients tell that parameters are replicas."""
BY_PLACEMENT = -2
"""The same, where DTensors say themselves that they are."""
BY_EQUALITY = -3
"""The same, where they are equal at the start, and gradients of others like them are summed."""
BY_WORD = -5
"""The same, where the program says so."""
BY_TABLE = -4
"""The same, where these are all parameters, and the diagnosis tells which may be replicas."""


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
    `whole`: all that must be equal by the next step, where other optimisers have more of it.
    `like`: what those are called that they are taken for replicas by. `is_frozen`: no optimiser has
    them. `use`, `traits`: see `record.replicas`."""

    model: int
    group: GroupRecord
    named: Named
    axis: Axis | None = None
    whole: Named = field(default_factory=list)
    like: Sequence[str] = ()
    is_frozen: bool = False
    use: str = ""
    traits: Sequence[Collection[str]] = ()


def declared_by(
    optimizer: Optimizer,
    parameters: Sequence[torch.Tensor],
    models: Sequence[DdpModel],
    gradients: ReducedGradients,
    axes: Mapping[GroupRecord, str],
) -> Iterator[Declared]:
    """Yields what is known of the `parameters` that this optimiser trains. `axes`: the names that
    dimensions of meshes have."""
    plain = [one for one in parameters if quantities.part(one, None) is not None]
    mine = {id(one) for one in plain}
    for number, known in enumerate(models):
        model = known.reference()
        group: Any = getattr(model, "process_group", None)
        if isinstance(group, CheckedGroup):
            whole = replicated_by(known, mine)
            named = [(name, one) for name, one in whole if id(one) in mine]
            yield Declared(number, group._record, named, whole=_if_more(whole, named))
            frozen = frozen_in(model.module) if model is not None else []
            known_so = {*getattr(model, "parameters_to_ignore", ()), *known.trained}
            kept = [(name, one) for name, one in frozen if name not in known_so]
            yield Declared(number, group._record, kept, is_frozen=True)
    if not models:
        yield from _by_gradients(optimizer, plain, gradients)
    if len(plain) < len(parameters):
        yield from _by_placement(optimizer, parameters)
    ours = [getattr(known.reference(), "process_group", None) for known in models]
    yield from _by_table(optimizer, parameters, gradients, ours, axes)


def frozen_in(module: nn.Module) -> Named:
    """Returns the parameters of a module that ask for no gradient, and have elements to read."""
    named = module.named_parameters()
    return [
        (n, p) for n, p in named if not p.requires_grad and quantities.part(p, None) is not None
    ]


def _by_table(
    optimizer: Optimizer,
    parameters: Sequence[torch.Tensor],
    gradients: ReducedGradients,
    of_ddp: Sequence[Any],
    axes: Mapping[GroupRecord, str],
) -> Iterator[Declared]:
    """Yields all parameters beside those of the optimiser, for each group that may hold replicas
    of them though nothing here says so.

    A group that passes activations holds parts of one model: shards, which ranks seed each for
    itself, and what each rank has whole. One that sums up gradients alone has replicas of what is
    frozen. One that does neither may have been forgotten, if it is a dimension of a mesh, or
    stands across one that sums up gradients, and no messages pass along it. What DDP brings
    together is known, and the shards of FSDP1 have no names.
    """
    names = find_whole(optimizer, SHARDED[:1])
    if names is None:
        return
    named = [(names[id(one)], one) for one in parameters]
    wanted = {id(one) for one in parameters}
    for root in roots(modules()):
        if has(root, wanted):
            named += [(name, one) for name, one in frozen_in(root) if id(one) not in wanted]
    named = [(name, one) for name, one in named if quantities.local(one) is not None]
    taken = {getattr(one, "_record", None) for one in of_ddp}
    every = [one.grad for one in parameters]
    beside = [one.grad for module in modules() for one in module.parameters(recurse=False)]
    for group in sorted(gradients.traffic, key=lambda one: (one.incarnation, one.name)):
        if group in taken or len(group.ranks) < 2:
            continue
        if gradients.moves_activations(group, [*every, *beside]):
            use = EXCHANGING if gradients.of(group).exchanges else PASSING
        elif any(gradients.held(group, every)):
            use = SUMMING
        elif gradients.peers.isdisjoint({*group.ranks} - {group.ranks[group.group_rank]}):
            use = UNUSED
        elif is_context(axes.get(group, "")):
            use = PASSING  # around a ring
        else:
            continue
        traits = [_traits(one, group, gradients) for _, one in named]
        crossed = any(ELSEWHERE in of_one for of_one in traits)
        if use is UNUSED and not (crossed or group.desc.startswith(OF_MESH)):
            continue
        # Where gradients are all that is summed, the rest of the trained parameters is known.
        chosen = [
            (one, of_one)
            for one, of_one in zip(named, traits, strict=True)
            if use is not SUMMING or of_one & {FROZEN, ELSEWHERE}
        ]
        of_chosen = [of_one for _, of_one in chosen]
        yield Declared(BY_TABLE, group, [one for one, _ in chosen], use=use, traits=of_chosen)


def _traits(one: torch.Tensor, group: GroupRecord, gradients: ReducedGradients) -> set[str]:
    local = quantities.local(one)
    found = {str(one.dtype).removeprefix("torch.")}
    if not one.requires_grad:
        found.add(FROZEN)
    if one.dim() > 1:
        found.add(MATRIX)
    if local is not None and bool((local == local.reshape(-1)[:1]).all()):
        found.add(CONSTANT)
    if local is not one:
        found |= {ELSEWHERE, PLACED}
    elif gradients.sums_elsewhere(group, one.grad):
        found.add(ELSEWHERE)
    return found


def replicated_by(known: DdpModel, mine: Collection[int]) -> Named:
    """The parameters that must be equal by a DDP model: those whose gradients it brings together,
    and those that an optimiser trains (`mine`: their ids) though it did not do so at first. One
    that is tied comes by each of its names: a rank may have untied it."""
    model = known.reference()
    if model is None:
        return []
    ignored = getattr(model, "parameters_to_ignore", ())
    return [
        (name, one)
        for name, one in model.module.named_parameters(remove_duplicate=False)
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
    names = find_whole(optimizer) if any(reduced.values()) else None
    if names is None:
        return
    trained = {id(one) for one in parameters if one.grad is not None}
    every_module = modules()
    of_all = [
        one.grad for each in every_module for one in each.parameters(recurse=False) if one.is_leaf
    ]
    for group, of_group in reduced.items():
        named = [(names[key], one) for key, one in of_group.items()]
        reach = [root for root in roots(every_module) if has(root, of_group)]
        of_roots: Named = [one for root in reach for one in root.named_parameters()]
        summed_up = gradients.held(group, [one.grad for _, one in of_roots])
        whole = [
            (name, one)
            for (name, one), known in zip(of_roots, summed_up, strict=True)
            if known or id(one) in of_group
        ]
        yield Declared(BY_GRADIENTS, group, named, whole=_if_more(whole, named))
        if gradients.passes_activations(group, [*every, *of_all]):
            left_out, like = forgotten(every_module, trained, reduced, group)
        else:
            left_out, like = left_beside(every_module, trained, reduced, group)
        named = [(names[id(one)], one) for one in parameters if id(one) in left_out]
        summed = [names[key] for key in of_group if key in like]
        yield Declared(BY_EQUALITY, group, named, like=summed)


def _by_placement(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> Iterator[Declared]:
    replicated: dict[Axis, list[torch.Tensor]] = {}
    for one in parameters:
        for axis in quantities.axes_of(one):
            if quantities.part(one, axis) is not None:
                replicated.setdefault(axis, []).append(one)
    names = find(optimizer) if replicated else {}
    for axis, tensors in replicated.items():
        if isinstance(axis.group, CheckedGroup):
            named = [(names[id(one)], one) for one in tensors]
            yield Declared(BY_PLACEMENT, axis.group._record, named, axis)


def _if_more(whole: Named, named: Named) -> Named:
    return whole if len(whole) > len(named) else []


def has(module: nn.Module, ids: Collection[int]) -> bool:
    """Returns whether one of these is a parameter of the module."""
    return any(id(one) in ids for one in module.parameters())


def forgotten(
    modules: Sequence[nn.Module],
    trained: Set[int],
    reduced: Mapping[GroupRecord, Mapping[int, object]],
    group: GroupRecord,
) -> tuple[set[int], set[int]]:
    """Finds parameters whose gradients a program seems to have forgotten to sum: the ids of those
    that this group has not summed, and of those of their like that it has. `trained`: of an
    optimiser's parameters that have gradients; `reduced`: by the groups that have summed these.

    Ranks that hold parts of one model sum the gradients of what each of them has whole: of norms,
    say. A gradient that is not summed tells nothing by itself. Shards have such, experts, and heads
    of one's own, and equal seeds make them equal at the start. So it must be of a module

    - without a matrix, as norms and scales are: it is matrices that are cut into shards;
    - of which there is another, of the same class and layout, whose gradients the group has summed;
    - that stands in a module of which the group sums gradients: an expert's norm is as alone as its
      matrices are;
    - and whose gradients no other group has summed than those that have summed its like's: what is
      reduced among fewer or other ranks is so by choice.

    That such parameters were equal at the start, and part, is what the diagnosis sees.
    """
    alike: dict[object, list[tuple[nn.Module, set[int]]]] = {}
    for module in modules:
        own = dict(module.named_parameters(recurse=False))
        ids = {id(one) for one in own.values()}
        if own and ids <= trained and all(one.dim() < 2 for one in own.values()):
            layout = tuple((name, one.shape, one.dtype) for name, one in own.items())
            alike.setdefault((type(module), layout), []).append((module, ids))

    def groups(ids: set[int]) -> set[GroupRecord]:
        return {one for one, of_it in reduced.items() if not ids.isdisjoint(of_it)}

    left_out: set[int] = set()
    summed: set[int] = set()
    for owners in alike.values():
        like = [ids for _, ids in owners if ids <= reduced[group].keys()]
        of_like = [groups(ids) for ids in like]
        for module, ids in owners:
            of_own = groups(ids)
            misses = group not in of_own and any(of_own <= one for one in of_like)
            if misses and _is_among(module, modules, reduced[group]):
                left_out |= ids
                summed.update(*like)
    return left_out, summed


def left_beside(
    modules: Sequence[nn.Module],
    trained: Set[int],
    reduced: Mapping[GroupRecord, Mapping[int, object]],
    group: GroupRecord,
) -> tuple[set[int], set[int]]:
    """The same for a group that sums gradients and passes no activations: what it leaves out may be
    a head of each rank's own, but hardly the bias of a matrix whose gradient it sums."""
    left_out: set[int] = set()
    summed: set[int] = set()
    for module in modules:
        own = {id(one): one for one in module.parameters(recurse=False)}
        like = {key for key in own if key in reduced[group]}
        beside = {key for key, one in own.items() if key in trained and one.dim() < 2} - like
        if like and beside and not any(beside & of_it.keys() for of_it in reduced.values()):
            left_out |= beside
            summed |= like
    return left_out, summed


def _is_among(
    module: nn.Module, modules: Sequence[nn.Module], reduced: Mapping[int, object]
) -> bool:
    """Whether it stands in a module that has some of these parameters."""
    parents = (one for one in modules if any(child is module for child in one.children()))
    return any(id(one) in reduced for parent in parents for one in parent.parameters())


SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def find_whole(optimizer: Optimizer, by: Sequence[str] = SHARDED) -> dict[int, str] | None:
    """Finds names as `find` does; None where a module of one of these classes has cut the
    parameters into shards, which are no replicas."""
    wanted = {id(one) for group in optimizer.param_groups for one in group["params"]}
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = tuple(kind for name in by if (kind := getattr(fsdp, name, None)) is not None)
    for module in modules():
        if isinstance(module, sharded) and has(module, wanted):
            return None
    return find(optimizer)


def find(optimizer: Optimizer) -> dict[int, str]:
    """Returns names by the parameter's id. Looks at all objects of the process: some hundredths of
    a second."""
    names = {
        id(one): f'param_groups[{number}]["params"][{index}]'
        for number, group in enumerate(optimizer.param_groups)
        for index, one in enumerate(group["params"])
    }
    wanted = set(names)
    # Of several modules that hold a parameter (an average of models, say), the one with the most.
    found = [
        {id(one): name for name, one in root.named_parameters() if id(one) in wanted}
        for root in roots(modules())
    ]
    for of_root in sorted(found, key=len):
        names.update(of_root)
    return names


def roots(every: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns those of the modules that no other one of them holds."""
    children = {id(child) for module in every for child in module.children()}
    return [module for module in every if id(module) not in children]


def modules() -> list[nn.Module]:
    """Returns all modules of this process."""
    return living(nn.Module)
