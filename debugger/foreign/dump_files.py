"""Finds which files of a folder are dumps of a flight recorder, of which rank, and of which job: by
what the dump itself tells, and by the numbers in its file's name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ..errors import UsageError
from ..record.collection import no_collection
from ..record.limits import MOST_RANKS
from ..record.runs.run_directory import BASE, run_names
from ..record.safe_text import clean
from ..record.wording import ranks_text
from .flight_recorder import Dump, NoDump, NoRecord, read
from .limits import CLOCKS_APART_S, COPIED_EARLIER_RUN_S, EARLIER_RUN_S
from .plain_pickle import bounded_memory

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class DumpFile:
    path: Path
    written_ns: int
    dump: Dump
    numbers: tuple[int, ...]
    after_rank: tuple[bool, ...]
    """Of each number of the name, whether the word "rank" stands before it."""

    @property
    def name(self) -> str:
        """The file's, or, where that has no number, with its folder's: `rank_3/trace`."""
        return name_of(self.path)


def name_of(path: Path) -> str:
    return path.name if NUMBER.search(path.name) else f"{path.parent.name}/{path.name}"


def ranks_of(files: Sequence[DumpFile]) -> list[int | None]:
    """Each file's rank: what the dump tells, or else the number of its name, counted from the end,
    that tells all files apart and fits the groups that the dumps are in. Numbers that contradict
    one of the dumps are ranks of none."""
    most = max((len(file.numbers) for file in files), default=0)
    lists: dict[int, frozenset[int]] = {}
    told = [_told(file.dump, lists) for file in files]
    best: tuple[tuple[int, int, int, int, int], list[int | None]] | None = None
    for place in range(1, most + 1):
        ranks = [file.numbers[-place] if len(file.numbers) >= place else None for file in files]
        ranks = [rank if rank is not None and rank < MOST_RANKS else None for rank in ranks]
        known = [rank for rank in ranks if rank is not None]
        wrong = sum(
            rank is not None
            and (its != rank if its is not None else not fits(file.dump, rank, lists))
            for file, rank, its in zip(files, ranks, told, strict=True)
        )
        doubled = len(known) - len(set(known))
        unnamed = sum(len(file.numbers) < place or not file.after_rank[-place] for file in files)
        score = (wrong, ranks.count(None), doubled, unnamed, place)
        if best is None or score < best[0]:
            best = (score, ranks)
    if best is None or best[0][0]:
        return list(told)
    return [rank if its is None else its for its, rank in zip(told, best[1], strict=True)]


def _told(dump: Dump, known: dict[int, frozenset[int]]) -> int | None:
    """The rank that a dump itself tells: a message has its own end as a rank of its group, and a
    rank makes no group that it is not in, so that it may be the only one that is in all of them."""
    for entry in () if dump.plain else dump.entries:
        ranks = dump.groups.get(entry.group, ()) if entry.group[0] else ()
        if entry.own is not None and entry.own < len(ranks):
            return ranks[entry.own]
    if not dump.listed or len(dump.groups) < 2:
        return None
    smallest = min(dump.groups.values(), key=len)
    inside = (rank for rank in smallest if fits(dump, rank, known))
    rank = next(inside, None)
    return rank if next(inside, None) is None else None


def fits(dump: Dump, rank: int, known: dict[int, frozenset[int]]) -> bool:
    """Whether a rank can have made this dump: it is in all of its groups, whether or not it has
    called in them. gloo's "" is not to be trusted: it may have ranks of a group."""
    if rank >= MOST_RANKS:
        return False
    for (name, _), ranks in dump.groups.items():
        if name and id(ranks) not in known:
            known[id(ranks)] = frozenset(ranks)
        if name and rank not in known[id(ranks)]:
            return False
    return True


MOST_FILE_BYTES = 1 << 28
MOST_FILES = 1 << 17
DEEPEST_FOLDER = 3
_START = (b"\x80", b"{")
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_TAR, _TAR_AT = b"ustar", 257
_PACKED_NAME = re.compile(r"\.(?:gz|tgz|zip|bz2|xz|zst|tar)$")
_RANK = re.compile(r"rank[^a-z0-9]{0,2}$", re.IGNORECASE)
MOST_FAULTS = 5
FEWEST_OF_A_RUN = 2


@dataclass(frozen=True, slots=True)
class Job:
    """The dumps of one job by global rank. `place` is what its files have in common; `age_s` how
    old its newest call was when the files were written (None: not to be told)."""

    place: str
    dumps: Mapping[int, Dump]
    age_s: float | None = None

    @property
    def newest_ns(self) -> int:
        """When the last call of any rank was made."""
        return max((dump.newest_ns for dump in self.dumps.values()), default=0)


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a folder: jobs, newest first. `faults` are sentences about files that cannot
    be read, `notes` about what was left aside."""

    jobs: Sequence[Job]
    faults: Sequence[str] = ()
    notes: Sequence[str] = field(default=())


def looks_like_dumps(path: Path) -> bool:
    """Whether a dump lies there, or is that file. Never opens what is no regular file."""
    if path.is_dir():
        if (path / "run.json").exists() or run_names(path):
            return False
        return any(_start(file) for file in islice(_regular(path), MOST_FILES))
    return _is_regular(path) and _start(path)


def packed_in(folder: Path) -> str:
    """A sentence about a file in this folder that is an archive, or compressed, and named so; ""
    where there is none. What is packed is not read: whoever has packed it knows what is in it."""
    named = (folder / name for name in sorted(os.listdir(folder)) if _PACKED_NAME.search(name))
    for file in filter(_is_regular, named):
        with suppress(OSError), open(file, "rb") as opened:
            if how := _packed_as(opened.read(_TAR_AT + len(_TAR))):
                return f"{clean(file.name)} {how}"
    return ""


def load(path: Path) -> Found:
    """The dumps at `path`: a folder (and folders in it) or one file. Raises UsageError."""
    files = [path] if not path.is_dir() else list(islice(_regular(path), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise UsageError(f"{path} has more than {MOST_FILES} files: name the folder of the dumps")
    found = of_files(files)
    if not found.jobs and not found.faults and not found.notes:
        raise UsageError(f"{path} holds no dump of a flight recorder")
    return found


def of_files(files: Sequence[Path]) -> Found:
    """The dumps among these files."""
    read_files: list[DumpFile] = []
    faults: list[str] = []
    others: list[_Other] = []
    with bounded_memory(), no_collection():
        for found in map(_outcome, files):
            if isinstance(found, _Other):
                others.append(found)
            elif isinstance(found, str):
                faults.append(found)
            elif found is not None:
                read_files.append(found)
    dumps = {_family(file.name) for file in read_files}
    faults += [one.sentence for one in others if not dumps or _family(name_of(one.path)) in dumps]
    if len(faults) > MOST_FAULTS:
        faults[MOST_FAULTS:] = [f"and {len(faults) - MOST_FAULTS} more files cannot be read"]
    jobs, notes = _jobs(read_files)
    return Found(sorted(jobs, key=lambda job: -job.newest_ns), faults, notes)


@dataclass(frozen=True, slots=True)
class _Other:
    """A file of plain data that is whole and holds something else (a configuration, a profile, a
    snapshot of memory), or an archive. Beside dumps with other names it is nobody's fault."""

    path: Path
    sentence: str


def _outcome(file: Path) -> DumpFile | _Other | str | None:
    """The dump, a sentence about what is wrong with it, or None: not even the start of a dump."""
    try:
        return _read(file)
    except NoRecord as error:
        return _Other(file, f"{clean(str(file))} {error}")
    except NoDump as error:
        return f"{clean(str(file))} {error}"


def _regular(folder: Path) -> Iterator[Path]:
    """Regular files below; no links, FIFOs (opening one waits) or sockets."""
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted({*folders} - {BASE.name}) if depth < DEEPEST_FOLDER else []
        for name in sorted(names):
            path = Path(place, name)
            if _is_regular(path):
                yield path


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _start(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    if start[:1] == b"{":
        return b'"entries"' in start or b'"pg_config"' in start or b'"pg_status"' in start
    return start[:1] == b"\x80"


def _packed_as(data: bytes) -> str:
    """A sentence without a subject about bytes that an archive begins with; "" of others."""
    kind = next((kind for start, kind in _PACKED.items() if data.startswith(start)), "")
    if data[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        kind = "tar"
    return f"is packed ({kind}): unpack it first" if kind else ""


def _read(path: Path) -> DumpFile | None:
    """None: not even the start of a dump."""
    try:
        # Between the listing and here it may have become a link or a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise NoDump("is no regular file")
            if about.st_size > MOST_FILE_BYTES:
                raise NoDump(f"has {about.st_size} bytes, more than {MOST_FILE_BYTES}")
            data = file.read(about.st_size)
    except OSError as error:
        raise NoDump(f"cannot be read: {error.strerror}") from None
    if data[:1] not in _START:
        if how := _packed_as(data):
            raise NoRecord(how)
        return None
    name = name_of(path)
    words = [word for word in NUMBER.finditer(name) if len(word[0]) < 10]
    return DumpFile(
        path,
        about.st_mtime_ns,
        read(data, about.st_mtime_ns),
        tuple(int(word[0]) for word in words),
        tuple(_RANK.search(name[: word.start()]) is not None for word in words),
    )


# -- ranks and jobs ------------------------------------------------------------------------------


def _jobs(files: Sequence[DumpFile]) -> tuple[list[Job], list[str]]:
    """The files by job: those whose names differ in the rank alone, in one folder, and those
    without a number there."""
    notes: list[str] = []
    several = _of_several(files)
    families: dict[tuple[str, str, object], list[DumpFile]] = {}
    for file in files:
        parent, family, world = file.path.parent, _family(file.name), None
        if parent in several and "/" in file.name:
            file = replace(file, numbers=(), after_rank=())
            family, world = parent.name, _world({0: file})
        if "/" in file.name:
            parent = parent.parent
        families.setdefault((str(parent), family, world), []).append(file)
    named: list[tuple[str, dict[int, DumpFile]]] = []
    parts = [
        (folder, family, part)
        for (folder, family, _), members in sorted(families.items(), key=lambda one: one[0][:2])
        for part in _of_one_job(members)
    ]
    unplaced: list[DumpFile] = []
    for folder, family, members in parts:
        ranks = ranks_of(members)
        by_rank: dict[int, DumpFile] = {}
        for file, rank in zip(members, ranks, strict=True):
            if rank is None:
                unplaced.append(file)
                continue
            other = by_rank.get(rank)
            if other is not None:
                file, aside = sorted((file, other), key=_worth, reverse=True)
                if file.dump.newest_ns != aside.dump.newest_ns:
                    notes.append(
                        f"rank {rank} has two dumps; the older one, {clean(aside.path.name)}, is "
                        "left aside"
                    )
            by_rank[rank] = file
        if by_rank:
            stem = family.strip("#") if len(members) > 1 else members[0].name
            named.append((os.path.join(folder, stem), by_rank))
    jobs = []
    joined = list(_joined(named))
    notes += [
        f"the name of {clean(file.path.name)} does not tell its rank, nor does its record"
        for file in _not_left_over(unplaced, [by_rank for _, by_rank in joined])
    ]
    for place, by_rank in joined:
        recent, left_over = _of_the_last_run(by_rank)
        if left_over:
            names = ", ".join(clean(file.path.name) for file in list(left_over.values())[:3])
            notes.append(
                f"{'the dump' if len(left_over) == 1 else 'the dumps'} of {ranks_text(left_over)} "
                f"({names}{', ...' if len(left_over) > 3 else ''}) "
                f"{'is' if len(left_over) == 1 else 'are'} of an earlier run, and left aside"
            )
        jobs.append(_job(place, recent))
    return jobs, notes


def _of_the_last_run(
    files: Mapping[int, DumpFile],
) -> tuple[Mapping[int, DumpFile], Mapping[int, DumpFile]]:
    """The files of the last run, and those that lie there since an earlier one: torch writes each
    rank's dump to the same place again, and a rank that is killed writes none. Their calls are
    older by far than the others are apart, and so are the files; a host that is stuck is not so
    far behind, for the others soon wait for it."""
    newest = sorted(files.values(), key=lambda file: -file.dump.newest_ns)
    for at in range(FEWEST_OF_A_RUN, len(newest)):
        first, last, before = (newest[one].dump.newest_ns for one in (0, at - 1, at))
        if not before:
            break
        apart_s, calls_s = (first - last) / 1e9, (last - before) / 1e9
        if calls_s > max(10 * apart_s, EARLIER_RUN_S) and calls_s > _earlier_s(
            newest[:at], newest[at:]
        ):
            ranks = {id(file) for file in newest[:at]}
            recent = {rank: file for rank, file in files.items() if id(file) in ranks}
            return recent, {rank: file for rank, file in files.items() if rank not in recent}
    return files, {}


def _earlier_s(run: Sequence[DumpFile], others: Sequence[DumpFile]) -> float:
    """By so much calls are older that an earlier run has made: by little, where their files are as
    much older; by much, where all were written together, as copies are."""
    last = max(file.written_ns for file in others)
    known = _is_time_of_writing([*run, *others])
    if known and min(file.written_ns for file in run) - last > EARLIER_RUN_S * 1e9:
        return EARLIER_RUN_S
    return COPIED_EARLIER_RUN_S


def _worth(file: DumpFile) -> tuple[int, int, bool, str]:
    """Ranks two dumps of a rank: the younger one counts, in which more calls have been made, or are
    complete; and of two forms of one that with stacks."""
    return (
        file.dump.newest_ns,
        -sum(not entry.done for entry in file.dump.entries),
        any(entry.stack for entry in file.dump.entries),
        file.path.name,
    )


def _job(place: str, files: Mapping[int, DumpFile]) -> Job:
    known = _is_time_of_writing(files.values())
    dumps = {
        rank: file.dump if known else replace(file.dump, written_ns=0)
        for rank, file in sorted(files.items())
    }
    return Job(place, dumps, _age_s(files.values()))


def _is_time_of_writing(files: Iterable[DumpFile]) -> bool:
    """Whether the times of these files can be those at which they were written: none is older than
    the last call in itself. Files that were copied, unpacked or restored have other times, and then
    not even those that are possible tell anything."""
    return all(file.written_ns >= file.dump.newest_ns - CLOCKS_APART_S * 1e9 for file in files)


def _age_s(files: Iterable[DumpFile]) -> float | None:
    """Returns how old the newest call was when the last file was written. Where clocks are apart,
    so that it was made after that: how old the last call of a rank was when its own file was, of
    the rank where that is least, without those whose clock is so far ahead that theirs were made
    after it. None where it cannot have been written then, as a copy was not."""
    made = [(file.written_ns, file.dump.newest_ns) for file in files if file.dump.newest_ns]
    if not made:
        return None
    age_s = (max(written for written, _ in made) - max(newest for _, newest in made)) / 1e9
    ages = [(written - newest) / 1e9 for written, newest in made]
    if min(ages) < -EARLIER_RUN_S:
        return None  # no clock is so far ahead
    possible = [one for one in ages if one >= -CLOCKS_APART_S]
    if age_s < 0 or len(possible) < len(ages):
        age_s = min(possible if 2 * len(possible) >= len(ages) else ages)
    return max(age_s, 0.0) if -CLOCKS_APART_S <= age_s < 86_400 else None


def _family(name: str) -> str:
    """The name without the numbers and the host in it, and without what says pickle or packed."""
    stem = re.sub(r"(?:\.(?:json|pickle|pkl|bin|trace|gz|zip|bz2|xz|zst|tar))+$", "", name)
    return NUMBER.sub("#", stem)


def _of_one_job(files: Sequence[DumpFile]) -> Sequence[Sequence[DumpFile]]:
    """The files of a family, apart where several jobs have names that differ in another number
    than the rank: `job7_rank_0`, `job8_rank_0`."""
    ranks = ranks_of(files)
    first: dict[int, DumpFile] = {}
    for file, rank in zip(files, ranks, strict=True):
        if rank is not None and (other := first.setdefault(rank, file)) is not file:
            break
    else:
        return [files]
    if _is_one_record(file.dump, other.dump) or len(file.numbers) < 2:
        return [files]
    pairs = zip(file.numbers, other.numbers, strict=False)
    place = next((at for at, (mine, its) in enumerate(pairs) if mine != its), None)
    if place is None:
        return [files]
    apart: dict[tuple[int, ...], list[DumpFile]] = {}
    for one in files:
        apart.setdefault(one.numbers[place : place + 1], []).append(one)
    return list(apart.values())


def _is_one_record(one: Dump, other: Dump) -> bool:
    """Whether two dumps of a rank are of one recorder: what they both have is the same call, made
    at the same moment, and their groups have the same members. A single call in common tells
    little: jobs that are made up, or replayed, begin at one moment."""
    groups = one.groups.keys() & other.groups.keys()
    # gloo has its groups under no name, of which the last one made overwrites the others.
    if any(name[0] and one.groups[name] != other.groups[name] for name in groups):
        return False
    known = {entry.record_id: entry for entry in one.entries}
    pairs = [(known.get(entry.record_id), entry) for entry in other.entries]
    both = [(mine, its) for mine, its in pairs if mine is not None]
    return bool(both) and all(
        (mine.created_ns, mine.group, mine.seq, mine.signature)
        == (its.created_ns, its.group, its.seq, its.signature)
        for mine, its in both
    )


def _of_several(files: Sequence[DumpFile]) -> set[Path]:
    """The folders of several dumps, whose numbers are no ranks. Forms of one dump have one name."""
    stems: dict[Path, set[str]] = {}
    for file in files:
        stems.setdefault(file.path.parent, set()).add(_family(file.path.name))
    return {folder for folder, names in stems.items() if len(names) > 1}


def _not_left_over(
    files: Sequence[DumpFile], jobs: Sequence[dict[int, DumpFile]]
) -> list[DumpFile]:
    """Returns those of these files without a rank that are not the only one of their job while one
    rank has no file; such a one is put there, unless it is a copy of another's."""
    left: list[DumpFile] = []
    alike: dict[object, list[DumpFile]] = {}
    for file in files:
        alike.setdefault(_world({0: file}), []).append(file)
    for world, some in alike.items():
        for job in jobs:
            lists = {id(ranks): ranks for one in (*job.values(), some[0]) for ranks in _named(one)}
            free = set().union(*lists.values()) - job.keys()
            if len(free) == len(some) == 1 and _world(job) == world:
                copied = any(
                    len(one.dump.entries) == len(some[0].dump.entries)
                    and _is_one_record(some[0].dump, one.dump)
                    for one in job.values()
                )
                rank = free.pop()
                if not copied and fits(some[0].dump, rank, {}):
                    job[rank] = some.pop()
        left += some
    return left


def _named(file: DumpFile) -> list[tuple[int, ...]]:
    """The members of its groups, of those that have a name."""
    return [ranks for (name, _), ranks in file.dump.groups.items() if name]


def _joined(
    named: list[tuple[str, dict[int, DumpFile]]],
) -> Iterator[tuple[str, dict[int, DumpFile]]]:
    """Families that are one job: hosts in the names, or a folder a node. They share no rank, and
    their world is the same."""
    left = list(named)
    while left:
        place, ranks = left.pop(0)
        merged = dict(ranks)
        for other in list(left):
            if _belong_together(merged, other[1]):
                for rank, file in other[1].items():
                    merged[rank] = max(file, merged.get(rank, file), key=_worth)
                left.remove(other)
                place = os.path.commonpath([place, other[0]])
        yield place, merged


def _belong_together(one: Mapping[int, DumpFile], other: Mapping[int, DumpFile]) -> bool:
    """Whether two families are of one job: copies of the same ranks' dumps, or other ranks of the
    same world."""
    both = one.keys() & other.keys()
    if both:
        return all(_is_one_record(one[rank].dump, other[rank].dump) for rank in both)
    return _world(one) == _world(other)


def _world(files: Mapping[int, DumpFile]) -> tuple[int, ...] | None:
    """The members of the biggest group that the dumps tell of."""
    lists = {id(ranks): ranks for file in files.values() for ranks in file.dump.groups.values()}
    return max(set(lists.values()), key=lambda ranks: (len(ranks), ranks), default=None)
