"""What a plan is asked to run: told to the process that its ranks are forked from, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One plan.

    `target` is a script, or a module where `is_module`; `arguments` are its own. `ranks` are those
    that are planned of `world_size`. `environment` is the ranks' (but for RANK and the like).
    """

    run_dir: str
    target: str
    arguments: tuple[str, ...]
    world_size: int
    ranks: tuple[int, ...]
    local_size: int
    is_module: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    jobs: int = 2
    steps: int = 0
    real_bytes: int = 65536
    undecided: str = "likely"
    time_s: float = 120.0
    memory_bytes: int = 0
    accelerator: str = "auto"
    barriers_wait: bool = True

    @property
    def directory(self) -> Path:
        return Path(self.run_dir)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Raises ValueError and TypeError for what is none."""
        given: dict[str, Any] = json.loads(text)
        given["arguments"] = tuple(given["arguments"])
        given["ranks"] = tuple(given["ranks"])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the running of a plan's ranks went. `statuses` are raw, by rank; `cut`: why nothing more
    is known of a rank. `runs`: processes that were started."""

    statuses: dict[int, int]
    cut: dict[int, str]
    runs: int
    seconds: float
    most_private_bytes: int
    most_waiting: int

    NAME = "planned.json"
    REFUSAL = "not_planned.txt"
    """Holds the sentence why there is no plan."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))
