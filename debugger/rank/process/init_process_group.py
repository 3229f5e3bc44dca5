"""Watches init_process_group and destroy_process_group: which rank this is, what it waits for."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ...hook.loading import when_imported
from ...record.layout import Activity
from ...record.notes import DestroyedNote, StaleStoreNote, StoreHostNote
from ...record.requests.lifeline import tie
from ...record.safe_files import read_regular
from ...system.proc import age_s, read_stat
from ..group.forks import Forks
from ..group.outstanding import UnwaitedWork
from ..log import rank_log
from ..log.rank_log import report_own_fault
from ..record.recorder import Recorder
from ..torch_private.calls import await_completion_hooks
from ..torch_private.gloo import settle
from ..torch_private.groups import creation_was_not_seen, has_threads_for_ranks
from ..torch_private.probe import c10d, patch
from ..torch_private.stores import on_new_stores, own_address, store_address
from .exceptions import failed_to_join
from .exits import Exits

_MOST_BYTES = 1 << 20
"""The most bytes of a FileStore's file that are read."""
_COUNT = re.compile(rb"refcount/(.)\0{3}(?:\0{4})?(\d+)", re.S)
_LONGEST_KEY = 4096
_KEYS_BEGIN = (b"refcount", b"/", b"-/")


@dataclass
class Initialisations:
    """The initialisations and destructions of this process's default group, all on record."""

    recorder: Recorder
    directory: Path
    creation_was_seen: Callable[[], bool]
    forks: Forks
    exits: Exits
    unwaited: UnwaitedWork

    def observe(self) -> None:
        """Begins. A rank that its launcher names is known at once, also if it never comes to
        initialise."""
        if os.environ.get("DISTDEBUG_RANK_PID") == str(os.getpid()):
            try:
                _claim(self.recorder, self.directory, _rendezvous((), {}), joins=False)
            except Exception as error:
                report_own_fault("claiming the rank", error)
        on_new_stores(_store_watch(self.recorder))
        patch(c10d, "init_process_group", self._init)
        patch(c10d, "destroy_process_group", self._destroy)

    def observe_rpc(self) -> None:
        """Watches each init_rpc: which rank this is, of a program that has workers of
        torch.distributed.rpc and no group, where its launcher has not said so before the process
        began. The package is imported by programs that use it."""
        when_imported(
            "torch.distributed.rpc",
            lambda package: patch(package, "init_rpc", self._init_rpc),
        )

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, directory = self.recorder, self.directory

        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            if has_threads_for_ranks():
                return original(*args, **kwargs)  # the record has one rank a process
            detail: dict[str, Any] = {"op": "init_process_group"}
            site = recorder.safe_site(sys._getframe(1))
            try:
                self.forks.revive()
                detail.update(_rendezvous(args, kwargs))
                _claim(recorder, directory, detail)
                tie(directory)
                if "path" in detail:
                    most = detail["world_size"]
                    _note_stale(recorder, detail["path"], site, most, by_attempt=False)
            except Exception as error:
                report_own_fault("watching init_process_group", error)
            with recorder.waiting_in(Activity.INIT, detail, site):
                try:
                    result = original(*args, **kwargs)
                except Exception as error:
                    failed_to_join(error, str(detail.get("address", "")))
                    raise
            self.exits.group_made()
            with contextlib.suppress(Exception):
                if not self.creation_was_seen():
                    creation_was_not_seen()
                if recorder.writer.rank < 0:
                    group = c10d.GroupMember.WORLD
                    _claim(recorder, directory, {"rank": group.rank(), "world_size": group.size()})
            own = not detail.keys() & {"path", "launcher", "store"}
            if own and detail.get("rank") == 0 and int(detail.get("world_size", 0)) > 1:
                # Where neither the launcher, a file nor the program itself hosts it, rank 0 does.
                recorder.note(StoreHostNote(), "this rank hosts the rendezvous store", site)
            # The record has its own field for the rank, and the rest is of no use in a log.
            untold = ("rank", "path", "store", "launcher", "all_clients", "served_at")
            told = {name: value for name, value in detail.items() if name not in untold}
            rank_log.write("init_process_group", "debug", **told)
            return result

        return init_process_group

    def _init_rpc(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init_rpc(*args: Any, **kwargs: Any) -> Any:
            try:
                self.forks.revive()
                if self.recorder.writer.rank < 0:
                    names = ("name", "backend", "rank", "world_size", "rpc_backend_options")
                    given = {**dict(zip(names, args, strict=False)), **kwargs}
                    size = given.get("world_size")
                    options = given.get("rpc_backend_options")
                    detail = {
                        "rank": int(given.get("rank", -1)),
                        "world_size": -1 if size is None else size,  # as its environment has it
                        "init_method": getattr(options, "init_method", None),
                    }
                    _claim(self.recorder, self.directory, _rendezvous((), detail))
                tie(self.directory)
            except Exception as error:
                report_own_fault("watching init_rpc", error)
            result = original(*args, **kwargs)
            self.exits.group_made()
            return result

        return init_rpc

    def _destroy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            site = recorder.safe_site(sys._getframe(1))
            with contextlib.suppress(Exception):
                if not recorder.writer.heap_half_full:  # a program may do it thousands of times
                    recorder.writer.note(DestroyedNote(), "destroy_process_group", site)
            group = args[0] if args else kwargs.get("group")
            detail = {"op": "destroy_process_group", **({"whole": True} if group is None else {})}
            with recorder.waiting_in(Activity.DESTROY, detail, site):
                # A worker of gloo that still drops a call's callback needs the GIL for it, while
                # the end of the group, or of a DDP model that outlives it, waits for the worker
                # with it.
                settle()
                try:
                    # The end of the process, which tells them too, may wait for the other ranks.
                    self.unwaited.report(over=True)
                except Exception as error:
                    report_own_fault("looking for handles that were dropped", error)
                await_completion_hooks(group)
                return original(*args, **kwargs)

        return destroy_process_group


def claim_at_its_end(recorder: Recorder, directory: Path, rank: int) -> None:
    """Say that this process was that rank, if it has not said who it is."""
    if recorder.writer.rank < 0:
        size = world_size_of_mpi(os.environ)
        _claim(recorder, directory, {"rank": rank, "world_size": size}, joins=False)


def _store_watch(recorder: Recorder) -> Callable[[str, bool, int], AbstractContextManager[None]]:
    hosting = False

    @contextlib.contextmanager
    def watch(path: str, hosts: bool, awaited: int) -> Iterator[None]:
        nonlocal hosting
        with contextlib.ExitStack() as waiting:
            site = recorder.safe_site(sys._getframe(2))
            # Within an initialisation it is a part of that, which is on record already. A FileStore
            # is made at once, unless its file holds something else: then torch reads it for ever,
            # and holds the GIL. The host of a TCPStore waits for those that it was made for.
            if recorder.writer.is_waiting(threading.get_ident()):
                pass
            elif awaited:
                with contextlib.suppress(Exception):
                    detail = {"op": "TCPStore", "awaited": awaited}
                    # Where it waits for all ranks, and no group was made yet, it is on its way to
                    # the default group.
                    everybody = os.environ.get("WORLD_SIZE") == str(awaited)
                    made = c10d.GroupMember.WORLD is not None
                    what = Activity.INIT if everybody and not made else Activity.STORE
                    waiting.enter_context(recorder.waiting_in(what, detail, site))
            elif path:
                with contextlib.suppress(Exception):
                    _note_stale(recorder, path, site)
                    detail = {"op": "FileStore", "path": path}
                    waiting.enter_context(recorder.waiting_in(Activity.INIT, detail, site))
            yield
        if hosts and not hosting:  # a program may make thousands
            hosting = True
            with contextlib.suppress(Exception):
                recorder.note(StoreHostNote(), "this rank hosts a store", site)

    return watch


def _rendezvous(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Rank, world size and address, from the arguments or the environment."""
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    method = given.get("init_method")
    rank, size = int(given.get("rank", -1)), int(given.get("world_size", -1))
    detail: dict[str, Any] = {"backend": str(given.get("backend"))}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        detail["launcher"] = True
    if given.get("store") is not None:
        detail["store"] = True
        detail["address"] = store_address(given["store"])
    elif method in (None, "env://"):
        environment = os.environ
        rank = int(environment.get("RANK", -1)) if rank < 0 else rank
        size = int(environment.get("WORLD_SIZE", -1)) if size < 0 else size
        detail["address"] = (
            f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
        )
    else:
        url = urlparse(str(method))
        detail["address"] = str(method)
        if url.scheme == "tcp" and detail.get("launcher"):
            port = os.environ.get("MASTER_PORT", "")
            if url.netloc.rpartition(":")[2] != port:
                detail["all_clients"] = True
                detail["served_at"] = f"{os.environ.get('MASTER_ADDR', '')}:{port}"
        if url.scheme == "file":
            detail["path"] = url.path
    if str(given.get("backend")).lower() == "fake":
        # Nobody else is in that world: another process may be the same rank of one of its own.
        detail["address"] = own_address("fake")
    detail["rank"], detail["world_size"] = rank, size
    return detail


def _note_stale(
    recorder: Recorder, path: str, site: int, most: int = 0, by_attempt: bool = True
) -> None:
    """Put on record why a FileStore's file makes the rendezvous go wrong: it is from before this
    run, or holds what no FileStore has written, or as many processes have it open as will ever join
    (`most`; 0: not known), without this one; nothing if not so. Where keys cannot be told apart
    `by_attempt` (a program may give each a prefix), ranks that were started again must not find
    what those before them have left."""
    try:
        status = os.stat(path)
        begins = read_regular(path, _MOST_BYTES) if status.st_size else b""
    except OSError:
        return
    started = float(os.environ.get("DISTDEBUG_RUN_STARTED", "0"))
    if not begins or not started:
        return
    # This process had to import torch before it, or one that was started with it, could write.
    stat = read_stat(os.getpid())
    began_s = 0.0 if stat is None else time.time() - age_s(stat.start_ticks)
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    if status.st_mtime < started:
        old_s = time.time() - status.st_mtime
        why = (
            f"the FileStore {path} holds {status.st_size} bytes written {old_s:.0f} s ago, "
            "before this run"
        )
        recorder.note(StaleStoreNote(path, users=_users(begins)), why, site)
    elif not by_attempt and restarted and status.st_mtime < began_s:
        why = f"the FileStore {path} was written by an earlier attempt, before this one began"
        recorder.note(StaleStoreNote(path, attempt=True), why, site)
    elif not _is_file_stores(begins):
        why = f"{path}, {status.st_size} bytes, holds what no FileStore has written"
        recorder.note(StaleStoreNote(path, foreign=True), why, site)
    elif 0 < most <= (users := _users(begins)):
        why = f"{users} processes have the FileStore {path} open, before this one joins"
        recorder.note(StaleStoreNote(path, users=users, by_count=True), why, site)


def _is_file_stores(begins: bytes) -> bool:
    """Whether a file that begins so is a FileStore's, as far as it is written: each text has its
    length before it, in four bytes or in eight, and the first is a key."""
    for width in (4, 8):
        length = int.from_bytes(begins[:width], "little")
        key = begins[width:]
        if 0 < length <= _LONGEST_KEY and (not key or key.startswith(_KEYS_BEGIN)):
            return True
    return False


def _users(begins: bytes) -> int:
    """Returns how many processes have the file open, by its count of them, which is written anew
    with each that comes or goes; one that was killed is still counted."""
    counts = [text[: size[0]] for size, text in _COUNT.findall(begins)]
    return int(counts[-1]) if counts and counts[-1] else 0


def world_size_of_mpi(environment: Mapping[str, str]) -> int:
    """Returns the world size that MPI's launcher has told a rank; 0 for none."""
    size = environment.get("OMPI_COMM_WORLD_SIZE") or environment.get("PMI_SIZE", "")
    return int(size) if size.isdecimal() else 0


def _claim(recorder: Recorder, directory: Path, detail: dict[str, Any], joins: bool = True) -> None:
    """Say which rank this is, and give the record its name, if no living process has it. `joins`:
    it makes a group; from then on its children are helpers, though they inherit RANK."""
    rank, size = int(detail["rank"]), int(detail["world_size"])
    if rank < 0:
        return
    if joins and "RANK" in os.environ:
        os.environ["DISTDEBUG_RANK_PID"] = str(os.getpid())
    recorder.claim(
        rank,
        size,
        int(os.environ.get("LOCAL_RANK", -1)),
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        str(detail.get("address", "")),
        joins,
        int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)),
    )
    recorder.writer.take_name(directory / "ranks" / f"{rank}.flight")
