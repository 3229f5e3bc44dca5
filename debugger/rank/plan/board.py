"""The board of a plan: what planned ranks have for one another, parts of collectives, messages, and
a store.

Pure: requests in, answers out, or None while another rank has to do something first. What was
given once stays, so that a rank that is run again from its start is answered as it was before.
What an answer depended on the moment for (a counter of the store, who sent first) is kept for it.

Where there is no room for all that wait for a collective, it may be taken for granted that those
which have not come yet will give what all have given so far (`assume`); one that does not refutes
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .exchange import TIMED_OUT, Message

ENOUGH = 8
"""The number of equal parts of a collective that make the others likely."""
_FLOATS = re.compile(r"\bb?(float|complex)\d+")

Values = list[bytes | None]


@dataclass(slots=True)
class BoardOffer:
    """A rank's part in a collective. `values`: one for all, or one for each rank."""

    text: str
    values: Values

    def of(self, rank: int) -> bytes | None:
        """Returns what the rank offers this one."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[rank] if rank < len(self.values) else None


@dataclass(slots=True)
class Replies:
    """The replies to one rank whose content depended on the moment, in order; how many of these the
    present run of it has had; and how many messages it has taken of each kind."""

    kept: list[Message] = field(default_factory=list)
    given: int = 0
    taken: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def keep(self, answer: Message) -> Message:
        """Returns the answer, which is given now."""
        self.kept.append(answer)
        self.given += 1
        return answer


class Board:
    """The board of one plan."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, BoardOffer]] = {}
        self._assumed: dict[str, BoardOffer] = {}
        self._agreed: dict[tuple[str, str], bytes | None] = {}
        self.found: dict[str, str] = {}
        """Results of the ranks that have computed them: the same on every rank, and long in the
        making."""
        self.refuted = False
        """Whether a rank has given something else than was assumed, and told to others."""
        self._messages: dict[tuple[Any, ...], dict[int, bytes | None]] = {}
        self._arrivals: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        self._sent: dict[int, dict[tuple[Any, ...], int]] = {}
        self._replies: dict[int, Replies] = {}
        self._keys: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}

    def begin(self, rank: int) -> None:
        """This rank starts, or starts anew."""
        replies = self._replies.setdefault(rank, Replies())
        replies.given = 0
        replies.taken = {}
        self._sent[rank] = {}

    def told(self, rank: int, words: Sequence[Any], values: Values) -> None:
        """Something that needs no answer."""
        match words:
            case ["offer", slot, text, member]:
                self._slots.setdefault(slot, {})[member] = BoardOffer(text, values)
                assumed = self._assumed.get(slot)
                if assumed is not None and assumed.text == text:
                    self.refuted |= assumed.values not in ([None], values)
            case ["send", channel, source, target, tag]:
                key = (channel, source, target, tag)
                sent = self._sent[rank]
                number = sent[key] = sent.get(key, 0) + 1
                known = self._messages.setdefault(key, {})
                if number not in known:
                    known[number] = values[0]
                    self._arrivals.setdefault((channel, target, tag), []).append((source, number))
            case ["remember", asked, found]:
                self.found[asked] = found
            case ["expect", channel, source, target, tag]:
                taken = self._replies[rank].taken
                key = (channel, source, target, tag)
                taken[key] = taken.get(key, 0) + 1

    def assume(self, words: Sequence[Any]) -> bool:
        """Let those who wait for the values of a collective have them before all have come: as all
        that have come gave the same; and numbers that differ are not known then. False where this
        request is for something else, or the parts differ."""
        match words:
            case ["collect", slot, text, _, sources]:
                offers = self._slots.get(slot, {}).values()
                values = next((offer.values for offer in offers), [])
                if len(offers) < min(ENOUGH, len(sources)) or len(values) != 1:
                    return False
                if any(offer.text != text for offer in offers):
                    return False
                if all(offer.values == values for offer in offers):
                    self._assumed[slot] = BoardOffer(text, values)
                elif _FLOATS.search(text):
                    self._assumed[slot] = BoardOffer(text, [None])
                return slot in self._assumed
        return False

    def answer(self, rank: int, words: Sequence[Any], values: Values) -> Message | None:
        """The answer to a request; None while it must wait."""
        match words:
            case ["collect", slot, text, member, sources]:
                return self._collected(slot, text, member, sources)
            case ["take", channel, source, target, tag, number]:
                known = self._messages.get((channel, source, target, tag), {})
                return ([], [known[number]]) if number in known else None
            case ["lack", _]:
                return None
            case ["recall", asked]:
                return [self.found.get(asked)], []
            case ["agree", slot, text]:
                return [], [self._agreed.setdefault((slot, text), values[0])]
        replies = self._replies[rank]
        if replies.given < len(replies.kept):
            replies.given += 1
            return replies.kept[replies.given - 1]
        found: Message | None = ["unknown"], []
        match words:
            case ["take_any", channel, target, tag]:
                found = self._from_anybody(replies, channel, target, tag)
            case ["store", *request]:
                found = self._stored(request, values)
        return None if found is None else replies.keep(found)

    def could_answer(self, rank: int, words: Sequence[Any], values: Values) -> bool:
        """Whether the rank would get an answer to this now; gives none."""
        match words:
            case ["collect" | "take" | "lack", *_]:
                return self.answer(rank, words, values) is not None
            case ["take_any", channel, target, tag]:
                return bool(self._arrivals.get((channel, target, tag)))
            case ["store", "get" | "wait", *names]:
                return _all_in(names, self._keys)
            case ["store", "pop", key]:
                return bool(self._queues.get(key))
        return True

    def timed_out(self, rank: int) -> Message:
        """The answer to this rank's wait for a key, which will never come."""
        return self._replies[rank].keep(([TIMED_OUT], []))

    def _collected(
        self, slot: str, text: str, member: int, sources: Sequence[int]
    ) -> Message | None:
        offers = self._slots.get(slot, {})
        assumed = self._assumed.get(slot)
        if assumed is not None and assumed.values == [None]:
            return [], [None] * len(sources)
        if assumed is None and len(offers) < len(sources):
            return None  # which is all there is to see most of the time
        found: Values = []
        for source in sources:
            offer = offers.get(source, assumed)
            if offer is None or offer.text != text:
                return None  # not there, or of another call: then the two can never meet
            found.append(offer.of(member))
        return [], found

    def _from_anybody(
        self, replies: Replies, channel: str, target: int, tag: int
    ) -> Message | None:
        for source, number in self._arrivals.get((channel, target, tag), []):
            key = (channel, source, target, tag)
            if number == replies.taken.get(key, 0) + 1:
                replies.taken[key] = number
                return [source], [self._messages[key][number]]
        return None

    def _stored(self, request: Sequence[Any], values: Values) -> Message | None:
        keys = self._keys
        given = [one or b"" for one in values]
        match request:
            case ["set", key]:
                keys[key] = given[0]
                return [], []
            case ["get", *names]:
                return ([], [keys[one] for one in names]) if _all_in(names, keys) else None
            case ["wait", *names]:
                return ([], []) if _all_in(names, keys) else None
            case ["check", *names]:
                return [_all_in(names, keys)], []
            case ["add", key, amount]:
                total = int(keys.get(key, b"0")) + int(amount)
                keys[key] = str(total).encode()
                return [total], []
            case ["append", key]:
                keys[key] = keys.get(key, b"") + given[0]
                return [], []
            case ["compare_set", key]:
                expected, desired = given
                if key not in keys:
                    if not expected:
                        keys[key] = desired
                    return [], [expected or desired]
                if keys[key] == expected:
                    keys[key] = desired
                return [], [keys[key]]
            case ["delete", key]:
                return [keys.pop(key, None) is not None], []
            case ["count"]:
                return [len(keys)], []
            case ["push", key]:
                self._queues.setdefault(key, []).append(given[0])
                return [], []
            case ["pop", key]:
                queue = self._queues.get(key)
                return ([], [queue.pop(0)]) if queue else None
            case ["queue_length", key]:
                return [len(self._queues.get(key, []))], []
        return ["unknown"], []


def _all_in(names: Sequence[str], keys: dict[str, bytes]) -> bool:
    return all(one in keys for one in names)


def waits_for(words: Sequence[Any]) -> str:
    """Why a rank whose request this is does not go on, where no answer ever comes."""
    match words:
        case ["collect", _, text, *_]:
            return f"it waits for the values of {text}, which never come"
        case ["lack", rank]:
            return f"it needs what rank {rank} has, which is not planned: name it in --ranks"
        case ["take" | "take_any", *_]:
            return "it waits for a message that never comes"
        case ["store", *_]:
            return "it waits for a key that nobody sets"
    return "it waits for what never comes"
