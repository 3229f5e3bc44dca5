"""The dumps of torch's flight recorder of a job that runs: those that its ranks have written, and
those that torch's debug servers (`torch.distributed.debug`) give.

NCCL's watchdog writes them when a call times out, a FIFO or a program when it is asked; each rank
appends its number to a prefix that its environment names. Older ones of another job are left aside.

A program that has called `start_debug_server()` has an HTTP server in each rank, whose address is a
key of the job's store. The answer is made by a C++ thread: a rank that hangs, or holds its GIL,
gives it as well.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..diagnosis.findings import Finding
from ..foreign import dump_files, judging
from ..foreign.flight_recorder import Dump, NoDump, read
from ..foreign.trace import traced
from ..record.safe_files import mark_of, open_regular
from ..record.safe_text import clean
from ..system.proc import age_s, root_of
from .limits import ANSWER_S, WRITTEN_S
from .processes import Process
from .store import Keys, values_of

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_DEFAULT = "torch/comm_lib_trace_rank_"
_MOST_RANKS_ELSEWHERE = 1 << 14
_LAST = b"."
"""What a pickle ends with."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The dumps' findings, and a sentence on where they are."""

    findings: Sequence[Finding]
    notes: Sequence[str]


def recorded(
    processes: Mapping[int, Process], answers: Mapping[int, Dump] | None = None
) -> Recorded | None:
    """Read the dumps of the processes, given by their ranks, beside those that ranks have given for
    an answer; None where there are none."""
    files = sorted(set(_files(processes)))
    found = dump_files.of_files(files) if files else dump_files.Found(())
    dumps: dict[int, Dump] = dict(found.jobs[0].dumps) if found.jobs else {}
    dumps.update(answers or {})
    if not dumps:
        return Recorded((), found.faults) if found.faults else None
    # How old the newest call is now, not when it was written: the job still runs.
    newest_ns = max(dump.newest_ns for dump in dumps.values())
    age_s = time.time() - newest_ns / 1e9 if newest_ns else None
    places = [f"{found.jobs[0].place}*"] if found.jobs else []
    places += ["torch's debug servers"] if answers else []
    source = (
        f"{len(dumps)} dumps of torch's flight recorder ({' and '.join(places)}) are read with the "
        "stacks"
    )
    return Recorded(judging.judge(traced(dumps), age_s), [source, *found.faults])


def ask(processes: Mapping[int, Process]) -> list[str]:
    """Ask the ranks through their FIFOs to write their dumps, and wait until they are there, to
    their ends. Returns sentences about those that did not."""
    waiting: dict[int, list[tuple[int, int]]] = {}
    seen: dict[int, tuple[list[tuple[int, int]], float]] = {}
    problems = []
    for rank, one in sorted(processes.items()):
        stem = one.told.get(PIPE_VARIABLE)
        if not stem:
            problems.append(f"rank {rank} has no FIFO to be asked by ({PIPE_VARIABLE} is not set)")
            continue
        try:
            # Without a reader opening it fails at once.
            at = f"{root_of(one.pid)}{stem}{rank}.pipe"
            pipe = os.open(at, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            problems.append(f"nobody reads the FIFO of rank {rank}: {error.strerror}")
            continue
        # What was there before: the clock of files is coarser than ours.
        waiting[rank] = [mark_of(path) for path in _of(rank, one)]
        with open(pipe, "wb", buffering=0) as writing:
            writing.write(b"1\n")
    until_s = time.monotonic() + ANSWER_S
    while waiting and time.monotonic() < until_s:
        time.sleep(0.05)
        for rank, before in list(waiting.items()):
            paths = list(_of(rank, processes[rank]))
            now = [mark_of(path) for path in paths]
            if now == before:
                continue
            last, since_s = seen.get(rank, (before, 0.0))
            if now != last:
                seen[rank] = now, time.monotonic()
                continue
            fresh = [path for path, one, was in zip(paths, now, before, strict=True) if one != was]
            if all(map(_is_whole, fresh)) or time.monotonic() - since_s >= WRITTEN_S:
                del waiting[rank]
    problems += [
        f"rank {rank} has not written its dump within {ANSWER_S:.0f} s" for rank in waiting
    ]
    return problems


def _files(processes: Mapping[int, Process]) -> Iterator[Path]:
    oldest_s = max((age_s(one.start_ticks) for one in processes.values()), default=0.0)
    began_ns = int((time.time() - oldest_s) * 1e9)
    for rank, one in processes.items():
        # Of ranks on other hosts, where the folder is shared.
        most = min(one.world_size or 0, _MOST_RANKS_ELSEWHERE) if rank == min(processes) else 0
        for number in {rank, *(other for other in range(most) if other not in processes)}:
            yield from (path for path in _of(number, one) if mark_of(path)[0] >= began_ns)


def _of(rank: int, one: Process) -> Iterator[Path]:
    named = [one.told[name] for name in PREFIX_VARIABLES if one.told.get(name)]
    cache = one.told.get("XDG_CACHE_HOME") or f"{one.told.get('HOME', '')}/.cache"
    for prefix in named or [f"{cache}/{_DEFAULT}"]:
        yield Path(f"{root_of(one.pid)}{prefix}{rank}")


def _is_whole(path: Path) -> bool:
    """Whether it ends as a dump does: one of many calls takes a while to be written."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(-len(_LAST), os.SEEK_END)
            return file.read() == _LAST
    except OSError:  # it is empty, too
        return False


_KEY = re.compile(r"(?:^|/)debug_server/rank(\d{1,6})$")
_HANDLER = "/handler/fr_trace_json?includestacktraces=false"
_ADDRESS = re.compile(r"http://[\w.\-\[\]:]{1,250}:\d{1,5}/?$")
_MOST_BYTES = 1 << 26
_WORKERS = 16


def dumps_of(keys: Keys) -> tuple[Mapping[int, Dump], list[str]]:
    """Returns the dumps of the ranks' recorders, by rank, and sentences about those that do not
    tell."""
    names = {name: int(match[1]) for name in keys.names if (match := _KEY.search(name))}
    addresses = {names[name]: text for name, text in values_of(keys, names).items()}
    if not addresses:
        return {}, []
    with ThreadPoolExecutor(min(_WORKERS, len(addresses)), "distdebug-dumps") as pool:
        answers = dict(zip(addresses, pool.map(_asked, addresses.values()), strict=True))
    found = {rank: answer for rank, answer in answers.items() if isinstance(answer, Dump)}
    return found, [
        f"the debug server of rank {rank} at {clean(addresses[rank], 120)} {answer}"
        for rank, answer in sorted(answers.items())
        if isinstance(answer, str)
    ]


def _asked(address: str) -> Dump | str:
    """A rank's dump, or what is wrong with it. The address is whatever somebody put into the store:
    nothing but plain HTTP is spoken, and no redirect followed."""
    if not _ADDRESS.match(address):
        return "has an address that is none"
    url = address.rstrip("/") + _HANDLER
    request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310  # see _ADDRESS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=ANSWER_S) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"does not answer: {clean(str(error), 200)}"
    if len(data) > _MOST_BYTES:
        return f"answers with more than {_MOST_BYTES} bytes"
    try:
        return read(data)
    except NoDump as error:
        return f"has given what {error}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """None is followed: urllib then raises the answer as an error."""
