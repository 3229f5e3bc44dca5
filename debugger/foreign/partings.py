"""Finds where the calls of ranks part: the first of a group, or of a channel, that do not fit. A
recorder keeps no hash chains; what those would tell is told by this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..record.signature import MASK, Signature, agreement_key
from .flight_recorder import COALESCED, Entry, launch_of
from .trace import Trace, TracedGroup


@dataclass(frozen=True)
class Parting:
    """The first sequence number of a group at which ranks have made calls that do not fit, what
    each of them gave there, and the number of its party, counted from 1."""

    seq: int
    made: Mapping[int, Signature]
    parties: Mapping[int, int]

    def chain(self, rank: int, issued: int) -> int:
        """Equal for ranks that are known to have called the same so far."""
        return 0 if issued <= self.seq else self.parties.get(rank, MASK)


def parting(trace: Trace, group: TracedGroup) -> Parting | None:
    """The first call of the group in which its ranks differ."""
    if len({calls.likeness for calls in group.calls.values() if calls.entries}) < 2:
        return None
    made: dict[int, dict[int, Sequence[Entry]]] = {}
    for rank, calls in group.calls.items():
        for seq, entries in calls.by_seq.items():
            made.setdefault(seq, {})[rank] = entries
    cut = {
        rank: id(dump.entries[0])
        for rank in group.calls
        if (dump := trace.dumps[rank]).entries and not dump.whole
    }
    for seq in sorted(made):
        signatures = _comparable(made[seq], cut)
        different = {id(one): one for one in signatures.values()}
        if len(different) < 2:
            continue  # the same object is the same call
        if group.key[2] and all(_is_past(made[seq][rank][0]) for rank in signatures):
            continue  # of worlds that were made again nobody says who is in which
        keys = {at: agreement_key(one) for at, one in different.items()}
        numbers: dict[object, int] = {}
        parties = {
            rank: numbers.setdefault(keys[id(one)], 1 + len(numbers))
            for rank, one in signatures.items()
        }
        if len(numbers) > 1:
            return Parting(seq, signatures, parties)
    return None


def _is_past(entry: Entry) -> bool:
    """Whether it is over, in a record of gloo's, which does not tell the members of groups."""
    return entry.done and not entry.tells_completion


def _comparable(
    made: Mapping[int, Sequence[Entry]], cut: Mapping[int, int]
) -> dict[int, Signature]:
    """Returns what the ranks must agree on. A coalesced call is compared by its ops alone, and a
    rank that has issued no more than some of its parts (its host stands between them) is not
    compared, nor is one whose record begins amid the parts (`cut`: the `id` of its first entry)."""
    coalesced = any(len(many) > 1 or many[0].signature.op == COALESCED for many in made.values())
    if not coalesced:
        return {rank: entries[0].signature for rank, entries in made.items()}
    ops = {
        rank: [entry.signature.op for entry in entries]
        for rank, entries in made.items()
        if id(entries[0]) != cut.get(rank)
    }
    whole = {rank for rank, mine in ops.items() if mine[-1] == COALESCED}
    parts = {op for rank in whole for op in ops[rank]}
    return {
        rank: Signature(op=" + ".join(dict.fromkeys(op for op in mine if op != COALESCED)))
        for rank, mine in ops.items()
        if rank in whole or not parts.issuperset(mine)
    }


def odd_message(trace: Trace, group: TracedGroup, ends: tuple[int, int]) -> int | None:
    """The number of the first message of a channel whose two ends differ in size or dtype. Of
    records that have lost their beginning nothing but that both ranks stand in it tells that two
    ends are of one message: the first that pends on either side."""
    channel = group.channels[ends]
    if channel.from_any:
        return None
    if trace.is_whole(*ends):
        pairs = zip(channel.sends, channel.receives, strict=False)
        return next(
            (at for at, (sent, received) in enumerate(pairs) if not _fit(sent, received)), None
        )
    sides = (channel.sends, channel.receives)
    pending = [one for side in sides for one in [entry for entry in side if not entry.done][:1]]
    fronts = [front for rank in ends if (front := trace.first_pending(rank)) is not None]
    if list(map(launch_of, pending)) != list(map(launch_of, fronts)) or len(pending) < len(sides):
        return None
    done = max(sum(entry.done for entry in side) for side in sides)
    return None if _fit(*pending) else done


def _fit(send: Entry, receive: Entry) -> bool:
    sent, received = send.signature, receive.signature
    if sent.tensors == received.tensors or not sent.tensors or not received.tensors:
        return True
    return sum(sent.counts) == sum(received.counts) and sent.dtypes == received.dtypes
