"""The request to run a plan, and its outcome: JSON between the command and the process that the
ranks are forked from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..safe_files import object_of


@dataclass(frozen=True, slots=True)
class Request:
    """A plan that is asked for; the flags of `distdebug plan`.

    `target` is a script, or a module where `is_module`; `arguments` are its own. `ranks` are those
    that are planned of `world_size`; empty: all. `environment` is the ranks' (but for RANK and the
    like). `jobs`: how many run at a time (0: one for each core). `steps`: after so many steps of an
    optimiser a rank ends in good order (0: when it ends by itself). `real_bytes`: how much of a
    tensor of integers is exchanged for real. `undecided`: which way a rank goes where a decision
    depends on a value that a plan does not have. `time_s`: how long a rank may run. `memory_bytes`:
    what all ranks that wait may have together (0: see `forker`). `accelerator`: whether
    calls for `cuda` are answered. `run_dir` is the planner's to fill in.
    """

    target: str
    arguments: tuple[str, ...]
    world_size: int
    is_module: bool = False
    local_size: int = 8
    ranks: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 0
    run_dir: str = ""
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
    """The outcome of running a plan's ranks. `statuses` are raw, by rank; `cut`: why nothing more
    is known of a rank. `runs`: processes that were started. `accelerator`: what answered calls for
    `cuda`; "none": torch. `buffers`: by backend of distcore's, how many bytes it buffers from
    one rank to another."""

    statuses: Mapping[int, int]
    cut: Mapping[int, str]
    runs: int
    seconds: float
    most_private_bytes: int
    most_waiting: int
    accelerator: str = "none"
    buffers: Mapping[str, int] = field(default_factory=dict)

    NAME = "planned.json"
    REFUSAL = "not_planned.txt"
    """Holds the sentence why there is no plan."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Outcome | None:
        """None where there is none in this run directory, or it is damaged."""
        try:
            found = object_of((directory / cls.NAME).read_bytes())
            return cls(
                {int(rank): int(status) for rank, status in found["statuses"].items()},
                {int(rank): str(why) for rank, why in found["cut"].items()},
                int(found["runs"]),
                float(found["seconds"]),
                int(found["most_private_bytes"]),
                int(found["most_waiting"]),
                str(found["accelerator"]),
                {str(backend): int(size) for backend, size in found["buffers"].items()},
            )
        except (OSError, KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def world_size(self) -> int:
        """The number of ranks, where all were planned."""
        return len(self.statuses.keys() | self.cut.keys())
