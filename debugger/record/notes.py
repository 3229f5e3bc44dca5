"""Notes as who writes them and who reads them have them: one frozen record each, made into JSON by
the one and read from it by the other, who gets None for what is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .bounds import MOST_RANKS
from .kinds import KINDS

CRASH = "crash"
"""Kind of a note about the line on which a fatal signal came; readers add it (`last_words`)."""
DESTROYED = "destroyed"
"""Kind of a note about where the rank has destroyed groups."""


@dataclass(frozen=True, slots=True)
class OwnFindingNote:
    """A finding that a rank has made itself. `finding` is its kind; `group`: name and incarnation;
    no `seq`: it is about a message. `headline`: see `diagnosis.findings.Finding`. `elsewhere`: the
    line that is on record with it is wrong, not the collective's."""

    finding: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    group: tuple[str, int]
    seq: int | None
    headline: str = ""
    elsewhere: bool = False

    NOTE = "finding"

    def data(self) -> dict[str, Any]:
        """As the note carries it."""
        return asdict(self)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> OwnFindingNote | None:
        """None where it is none of this version: records may be damaged, or from elsewhere."""
        try:
            name, incarnation = data["group"]
            found = cls(
                finding=data["finding"],
                culprits=tuple(data["culprits"]),
                victims=tuple(data["victims"]),
                group=(name, incarnation),
                seq=data["seq"],
                headline=str(data.get("headline", "")),
                elsewhere=bool(data.get("elsewhere", False)),
            )
        except (KeyError, TypeError, ValueError):
            return None
        return found if found._makes_sense() else None

    def _makes_sense(self) -> bool:
        """Whether a rank of ours may have written this."""
        ranks = (*self.culprits, *self.victims)
        finding: object = self.finding
        group: tuple[object, object] = self.group
        return (
            isinstance(finding, str)
            and finding in KINDS
            and isinstance(group[0], str)
            and type(group[1]) is int
            and (self.seq is None or type(self.seq) is int)
            and len(self.culprits) > 0
            and len(ranks) <= MOST_RANKS
            and all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks)
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """verdict.json: what every rank that can run Python raises. `text` is the finding's line."""

    kind: str
    text: str
    cause: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> Verdict | None:
        """None where it is damaged."""
        if not isinstance(value, dict) or not {"kind", "text"} <= value.keys():
            return None
        cause = value.get("cause")
        return cls(str(value["kind"]), str(value["text"]), None if cause is None else str(cause))
