"""Notes as who writes them and who reads them have them: one frozen record each, made into JSON by
the one and read from it by the other, who gets None for what is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .kinds import KINDS


@dataclass(frozen=True, slots=True)
class OwnFindingNote:
    """A finding that a rank has made itself. `finding` is its kind; `group`: name and incarnation;
    no `seq`: it is about a message. `headline`: see `diagnosis.findings.Finding`."""

    finding: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    group: tuple[str, int]
    seq: int | None
    headline: str = ""

    NOTE = "finding"

    def data(self) -> dict[str, Any]:
        """As the note carries it."""
        return asdict(self)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> OwnFindingNote | None:
        """None where it is none of this version: records may be damaged, or from elsewhere."""
        try:
            name, incarnation = data["group"]
            seq = data["seq"]
            found = cls(
                finding=str(data["finding"]),
                culprits=tuple(map(int, data["culprits"])),
                victims=tuple(map(int, data["victims"])),
                group=(str(name), int(incarnation)),
                seq=None if seq is None else int(seq),
                headline=str(data.get("headline", "")),
            )
        except (KeyError, TypeError, ValueError):
            return None
        return found if found.finding in KINDS and found.culprits else None


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
