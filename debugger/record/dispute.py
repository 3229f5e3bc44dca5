"""Decides who is right when ranks make different calls, and how that is said: the largest agreeing
set, if there is one.

The ranks themselves say it at DETAIL, before anything is sent, and the report says it of any run.
Ranks that have not spoken yet may still decide it, so a verdict that they could change is held
back for a short while.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from .signature import (
    Signature,
    describe_tensors,
    disagreement,
    disagreements,
    exact_key,
    gravity,
)
from .wording import printable, ranks_text, verb

K = TypeVar("K", bound=Hashable)
MOST_PARTIES = 4


@dataclass(frozen=True, slots=True)
class Vote(Generic[K]):
    """`majority` is None without a strictly largest set; then all who voted are culprits."""

    parties: tuple[tuple[K, tuple[int, ...]], ...]
    majority: K | None
    culprits: tuple[int, ...]
    open: bool

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks that voted and are no culprits."""
        culprits = set(self.culprits)
        return tuple(
            sorted(rank for _, ranks in self.parties for rank in ranks if rank not in culprits)
        )


def vote(answers: Mapping[K, Sequence[int]], still_to_come: int) -> Vote[K]:
    """Count the ranks behind each answer. `still_to_come` ranks may join any of the parties."""
    parties = sorted(
        ((key, tuple(sorted(ranks))) for key, ranks in answers.items()),
        key=lambda party: (-len(party[1]), party[1]),
    )
    first = len(parties[0][1])
    second = len(parties[1][1]) if len(parties) > 1 else 0
    strict = first > second
    left_out = parties[1:] if strict else parties
    return Vote(
        parties=tuple(parties),
        majority=parties[0][0] if strict else None,
        culprits=tuple(sorted(rank for _, ranks in left_out for rank in ranks)),
        open=still_to_come > 0 and first - second <= still_to_come,
    )


@dataclass(frozen=True, slots=True)
class Dispute:
    """`kind` is a finding's kind; `culprits` and `victims` are global ranks. `headline` is the
    message without the calls of each rank, "" where it has none."""

    kind: str
    message: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    headline: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of ranks: the split of one and what the other expects, in elements; ranks of the
    group."""

    sender: int
    receiver: int
    sends: int
    expects: int


def settle(signatures: Sequence[Signature], ranks: Sequence[int], place: str) -> Dispute | None:
    """Returns what the ranks of a group disagree on, given the call of each; None where they agree.

    `ranks` are the global ranks by group rank; `place` is `#17 of group "default_pg"`.
    """
    answers: dict[tuple[object, ...], list[int]] = {}
    calls: dict[tuple[object, ...], Signature] = {}
    for rank, signature in zip(ranks, signatures, strict=True):
        key = exact_key(signature)
        answers.setdefault(key, []).append(rank)
        calls.setdefault(key, signature)
    if len(answers) < 2:
        pairs = uneven_pairs(dict(enumerate(signatures)))
        where = f"{signatures[0].op} {place}"
        return split_dispute(pairs, dict(enumerate(signatures)), ranks, where) if pairs else None
    result = vote(answers, 0)
    usual, odd = opponents(result, calls)
    kind = disagreement(calls[usual], calls[odd])
    headline = dispute_headline(f"{place} ({len(ranks)} ranks)")
    differences = differences_text(calls[usual], calls[odd])
    message = f"{headline}: {parties_text(result, calls)}{differences}"
    headline += differences
    return Dispute(kind or "shape_mismatch", message, result.culprits, result.others, headline)


def opponents(result: Vote[K], calls: Mapping[K, Signature]) -> tuple[K, K]:
    """The answer of most, and of the others that which differs most from it; of equally different
    ones that of the first culprit."""
    usual = result.parties[0][0]
    odd = min(
        result.parties[1:],
        key=lambda party: (gravity(calls[usual], calls[party[0]]), party[1]),
    )
    return usual, odd[0]


def dispute_headline(where: str) -> str:
    """`where` is `#17 of group "default_pg" (4 ranks)`."""
    return f"ranks disagree at collective {where}"


def parties_text(result: Vote[K], calls: Mapping[K, Signature]) -> str:
    """Says who calls what: those outside the majority first."""
    first, *rest = result.parties
    parties = result.parties if result.majority is None else (*rest, first)
    devices = len({call.device for call in calls.values()}) > 1
    parts = []
    for key, ranks in parties:
        call = calls[key]
        device = f" on {call.device}" if devices and call.device else ""
        text = printable(f"{call}{device}")
        parts.append(f"{ranks_text(ranks)} {verb(ranks, 'calls', 'call')} {text}")
    return "; ".join(parts[:MOST_PARTIES]) + ("; ..." if len(parts) > MOST_PARTIES else "")


def differences_text(one: Signature, other: Signature) -> str:
    """`; they differ in shape and dtype`, where it is more than one thing."""
    names = [kind.removesuffix("_mismatch").replace("_", " ") for kind in disagreements(one, other)]
    if len(names) < 2:
        return ""
    return f"; they differ in {', '.join(names[:-1])} and {names[-1]}"


def message_difference(
    sent: Signature, received: Signature, source: int, destination: int, number: int | None = None
) -> str:
    """The finding's sentence for a send and its receive; `number` counts from 0 per channel."""
    tag = f", tag {sent.tag}" if sent.tag else ""
    what = (
        "other dtype"
        if sent.dtypes != received.dtypes
        else f"{sum(sent.counts)} elements against {sum(received.counts)}"
    )
    which = "" if number is None else f" (message #{number} from {source} to {destination}{tag})"
    return (
        f"rank {source} sends {_content(sent)} to rank {destination}, which receives "
        f"{_content(received)}: {what}{which}"
    )


def _content(signature: Signature) -> str:
    return printable(describe_tensors(signature.tensors)) or "nothing"


def uneven_pairs(calls: Mapping[int, Signature]) -> list[Pair]:
    """Returns the pairs of ranks whose splits of an all-to-all do not fit; `calls` by group rank,
    some or all."""
    found = []
    for sender, call in calls.items():
        for receiver, sends in enumerate(call.sends):
            other = calls.get(receiver)
            if other is None or sender >= len(other.receives):
                continue
            expects = other.receives[sender]
            if sends != expects:
                found.append(Pair(sender, receiver, sends, expects))
    return found


def split_dispute(
    pairs: Sequence[Pair], calls: Mapping[int, Signature], ranks: Sequence[int], where: str
) -> Dispute | None:
    """Returns the dispute from which these pairs, of an all-to-all's `calls`, come; `where` is
    `all_to_all_single #3 of group "default_pg"`. A rank whose splits do not add up to its own
    tensor is wrong by itself; where all are, their backends refuse the call on each, and there is
    no dispute: None."""
    unfit = {rank: text for rank, call in calls.items() if (text := _unfit(call))}
    if len(unfit) == len(ranks):
        return None
    if unfit:
        culprits = tuple(ranks[rank] for rank in unfit)
        first, text = next(iter(unfit.items()))
        message = f"the splits of rank {ranks[first]} do not add up in {where}: {text}"
    else:
        culprits = pair_ranks(pairs, ranks)
        message = pair_text(pairs[0], ranks, where)
    victims = tuple(rank for rank in ranks if rank not in culprits)
    return Dispute("invalid_argument" if unfit else "split_mismatch", message, culprits, victims)


def _unfit(call: Signature) -> str:
    """Tells how the splits differ from the tensor that they are of; "" where they do not."""
    for splits, tensors, name in (
        (call.sends, call.tensors, "input"),
        (call.receives, call.others, "output"),
    ):
        sizes = [size for _, shape in tensors for size in shape]
        elements = sum(prod(shape) for _, shape in tensors)
        known = all(size >= 0 for size in sizes)  # one that is no number is on record as -1
        if splits and tensors and known and sum(splits) != elements:
            return f"{sum(splits)} elements, where its {name} has {elements}"
    return ""


def pair_ranks(pairs: Sequence[Pair], ranks: Sequence[int]) -> tuple[int, ...]:
    """The global rank that is in every pair; where that is none, or there is only one pair, those
    of all pairs."""
    common = set.intersection(*({pair.sender, pair.receiver} for pair in pairs))
    if len(common) == 1:
        return tuple(ranks[rank] for rank in common)
    return tuple(sorted({ranks[end] for pair in pairs for end in (pair.sender, pair.receiver)}))


def pair_text(pair: Pair, ranks: Sequence[int], where: str) -> str:
    """The finding's sentence; `where` is `all_to_all_single #3 of group "default_pg"`."""
    return (
        f"rank {ranks[pair.sender]} sends {pair.sends} elements to rank {ranks[pair.receiver]}, "
        f"which expects {pair.expects}, in {where}"
    )
