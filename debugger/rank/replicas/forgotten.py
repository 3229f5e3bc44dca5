"""Parameters whose gradients a program seems to have forgotten to sum, by what it does with others.

Ranks that hold parts of one model sum the gradients of what each of them has whole: of norms, say.
A gradient that is not summed tells nothing by itself. Shards have such, experts, and heads of one's
own, and equal seeds make them equal at the start. So it must be of a module

- without a matrix, as norms and scales are: it is matrices that are cut into shards;
- of which there is another, of the same class and layout, whose gradients the group has summed;
- that stands in a module of which the group sums gradients: an expert's norm is as alone as its
  matrices are;
- and whose gradients no other group has summed than those that have summed its like's: what is
  reduced among fewer or other ranks is so by choice.

That such parameters were equal at the start, and part, is what the diagnosis sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torch import nn

from ..record.recorder import GroupRecord


def forgotten(
    modules: Sequence[nn.Module],
    trained: Set[int],
    reduced: Mapping[GroupRecord, Mapping[int, object]],
    group: GroupRecord,
) -> tuple[set[int], set[int]]:
    """The ids of those that this group has not summed, and of those of their like that it has.
    `trained`: of an optimiser's parameters that have gradients; `reduced`: by the groups that have
    summed these."""
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


def _is_among(
    module: nn.Module, modules: Sequence[nn.Module], reduced: Mapping[int, object]
) -> bool:
    """Whether it stands in a module that has some of these parameters."""
    parents = (one for one in modules if any(child is module for child in one.children()))
    return any(id(one) in reduced for parent in parents for one in parent.parameters())
