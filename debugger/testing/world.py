"""The default group of a rank of a test: made before its fixtures, destroyed after them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

STORE_TIMEOUT = timedelta(minutes=10)
"""The test's own limit is shorter, and says more."""


@dataclass(frozen=True, slots=True)
class DistRank:
    """The value of the fixture `dist_rank`: which rank this is, of how many, on what.

    `device` is a torch.device: a GPU of the rank's own for backends with NCCL, else the CPU.
    """

    rank: int
    world_size: int
    local_rank: int
    backend: str
    device: Any


class RankWorld:
    """Begins and ends the group; knows the rank's place in it."""

    def __init__(self, rank: int, size: int, backend: str, listener: socket.socket) -> None:
        self._listener = listener
        self._begun = False
        self._backend = backend
        self._rank, self._size = rank, size
        self.dist_rank = DistRank(rank, size, rank, backend, self._device())

    def _device(self) -> Any:
        import torch

        nccl = "nccl" in self._backend
        return torch.device("cuda", self._rank) if nccl else torch.device("cpu")

    def begin(self) -> None:
        """init_process_group, with a store on a port that is bound already."""
        import torch
        import torch.distributed as dist

        if "tcp" in self._backend:
            import distcore  # noqa: F401 - registers the backend
        if self.dist_rank.device.type == "cuda":
            torch.cuda.set_device(self.dist_rank.device)
        host, port = self._listener.getsockname()
        options: dict[str, Any] = {}
        if self._rank == 0:
            options["master_listen_fd"] = self._listener.detach()
        else:
            self._listener.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            self._size,
            is_master=self._rank == 0,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            **options,
        )
        dist.init_process_group(self._backend, store=store, rank=self._rank, world_size=self._size)
        self._begun = True

    def end(self) -> None:
        """Destroy what groups there are, unless the run was ended: then a call may never return."""
        if not self._begun:
            return
        self._begun = False
        import torch.distributed as dist

        from ..rank.install import installed
        from ..rank.torch_private.gloo import settle

        layer = installed()
        ended = layer is not None and layer.verdict.was_raised
        if dist.is_initialized() and not ended:
            dist.destroy_process_group()
            settle()
