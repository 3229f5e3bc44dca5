"""The verdict of a run, as the supervisor tells it to all ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
