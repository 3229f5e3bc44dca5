"""Watches init_rpc: which rank this is, of a program that has workers of torch.distributed.rpc and
no group, where its launcher has not said so before the process began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...hook.loading import when_imported
from ...record.requests.lifeline import tie
from .. import torch_private
from ..group.forks import Forks
from ..log.own_faults import report_own_fault
from ..record.recorder import Recorder
from .exits import Exits
from .init_process_group import claim_as_worker


def observe(recorder: Recorder, directory: Path, forks: Forks, exits: Exits) -> None:
    """Watches each initialisation. The package is imported by programs that use it."""

    def watch(package: ModuleType) -> None:
        torch_private.patch(
            package,
            "init_rpc",
            lambda original: _init(recorder, directory, forks, exits, original),
        )

    when_imported("torch.distributed.rpc", watch)


def _init(
    recorder: Recorder,
    directory: Path,
    forks: Forks,
    exits: Exits,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    def init_rpc(*args: Any, **kwargs: Any) -> Any:
        try:
            forks.revive()
            if recorder.writer.rank < 0:
                names = ("name", "backend", "rank", "world_size", "rpc_backend_options")
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                options = given.get("rpc_backend_options")
                claim_as_worker(
                    recorder,
                    directory,
                    int(given.get("rank", -1)),
                    given.get("world_size"),
                    getattr(options, "init_method", None),
                )
            tie(directory)
        except Exception as error:
            report_own_fault("watching init_rpc", error)
        result = original(*args, **kwargs)
        exits.group_made()
        return result

    return init_rpc
