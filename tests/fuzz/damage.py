"""What can be wrong with a run that comes from elsewhere: changes to its files, drawn at random.

A change is a small frozen record, so that hypothesis can draw, print and shrink it. Changes of
structure keep a file readable and lie in it: a field of a slot, a value in a document, a text of
the heap. Changes of bytes do not care.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, error
from typing import Any

from hypothesis import strategies as st

from distdebug.record import layout

Files = dict[str, bytes]
"""The files of a run, by their names relative to its directory."""

AREAS: Mapping[str, tuple[Struct, int, int, int]] = {
    "header": (layout.HEADER, 0, 1, 1),
    "dynamic": (layout.DYNAMIC, layout.DYNAMIC_OFFSET, 1, 1),
    "thread": (layout.THREAD, layout.THREADS_OFFSET, layout.THREAD_BYTES, layout.THREADS),
    "group": (layout.GROUP, layout.GROUPS_OFFSET, layout.GROUP_BYTES, layout.GROUPS),
    "checkpoint": (
        layout.CHECKPOINT,
        layout.CHECKPOINTS_OFFSET,
        layout.CHECKPOINT.size,
        layout.GROUPS * layout.CHECKPOINTS,
    ),
    "channel": (layout.CHANNEL, layout.CHANNELS_OFFSET, layout.CHANNEL.size, layout.CHANNELS),
    "thread's word": (
        layout.U64,
        layout.THREADS_OFFSET + layout.THREAD_CALL_AT,
        layout.THREAD_BYTES,
        layout.THREADS,
    ),
    "slot": (layout.SLOT, layout.RING_OFFSET, layout.SLOT.size, layout.RING),
}
"""The parts of a flight record: form of a slot, where the first is, how far apart, how many."""
NUMBERS = (0, 1, 2, 7, 4095, 4096, 65535, 2_000_000_000, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ODD_TEXTS = (
    "Infinity",
    "-Infinity",
    "NaN",
    "1e999",
    "2000000000",
    "-1",
    "0",
    "9" * 4000,
    "9" * 5000,
    "1.5",
    "true",
    "null",
    '""',
    '"\\u001b[2J\\n::stop-commands::x"',
    '"\\ud800"',
    "[]",
    "{}",
    "[[1,2],[3]]",
    '{"a":{"b":[null]}}',
    "[" * 400 + "]" * 400,
    "[" * 50_000 + "]" * 50_000,
    "[" + "{}," * 200_000 + "0]",
    "[" + ",".join(map(str, range(20_000))) + "]",
    '"' + "x" * 200_000 + '"',
)


@dataclass(frozen=True)
class Field:
    """One number of one slot of a flight record."""

    file: int
    area: str
    slot: int
    field: int
    value: int

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, ".flight")
        form, start, stride, count = AREAS[self.area]
        at = start + self.slot % count * stride
        data = bytearray(files[name])
        if len(data) < layout.FILE_BYTES:
            return
        row = list(form.unpack_from(data, at))
        place = self.field % len(row)
        if isinstance(row[place], bytes):
            return
        for mask in (2**64 - 1, 2**63 - 1, 2**32 - 1, 2**31 - 1, 2**16 - 1, 2**8 - 1):
            row[place] = self.value & mask
            try:
                form.pack_into(data, at, *row)
                break
            except error:
                continue
        files[name] = bytes(data)


@dataclass(frozen=True)
class Link:
    """A call names another one as the one before it: itself, say, or one that comes later."""

    file: int
    slot: int
    back: int

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, ".flight")
        data = bytearray(files[name])
        at = layout.RING_OFFSET + self.slot % layout.RING * layout.SLOT.size
        if len(data) < layout.FILE_BYTES:
            return
        row = list(layout.SLOT.unpack_from(data, at))
        row[8] = (row[0] - self.back) & 0xFFFFFFFF
        layout.SLOT.pack_into(data, at, *row)
        files[name] = bytes(data)


@dataclass(frozen=True)
class Text:
    """A text of the heap, with another value at one place in it; `grown` times in a row."""

    file: int
    definition: int
    path: tuple[int, ...]
    text: str
    grown: int

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, ".flight")
        data = bytearray(files[name])
        if len(data) < layout.FILE_BYTES:
            return
        (used,) = layout.U64.unpack_from(data, layout.HEAP_USED_AT)
        head, at, found = layout.DEFINITION, 0, []
        while at + head.size <= min(used, layout.HEAP_BYTES):
            length, kind, number = head.unpack_from(data, layout.HEAP_OFFSET + at)
            start = layout.HEAP_OFFSET + at + head.size
            found.append((kind, number, bytes(data[start : start + length])))
            at += head.size + length
        if not found:
            return
        kind, number, text = found[self.definition % len(found)]
        changed = (kind, number, changed_json(text, self.path, self.text))
        found[self.definition % len(found)] = changed
        room = layout.HEAP_BYTES // (len(changed[2]) + head.size)
        found += [changed] * min(self.grown, room)
        heap = b"".join(head.pack(len(text), kind, one) + text for kind, one, text in found)
        heap = heap[: layout.HEAP_BYTES]
        data[layout.HEAP_OFFSET : layout.HEAP_OFFSET + len(heap)] = heap
        layout.U64.pack_into(data, layout.HEAP_USED_AT, len(heap))
        files[name] = bytes(data)


@dataclass(frozen=True)
class Value:
    """A document, or a line of one, with another value at one place in it."""

    file: int
    line: int
    path: tuple[int, ...]
    text: str

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, ".json", ".jsonl")
        if name.endswith(".json"):
            files[name] = changed_json(files[name], self.path, self.text)
            return
        lines = files[name].split(b"\n")
        place = self.line % len(lines)
        lines[place] = changed_json(lines[place], self.path, self.text)
        files[name] = b"\n".join(lines)


@dataclass(frozen=True)
class Bytes:
    """Other bytes somewhere; with `cut` nothing behind them."""

    file: int
    at: int
    data: bytes
    cut: bool

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, "")
        old = files[name]
        at = self.at % (len(old) + 1)
        files[name] = old[:at] + self.data + (b"" if self.cut else old[at + len(self.data) :])


@dataclass(frozen=True)
class Whole:
    """A file of which nothing is left, or that holds something else altogether."""

    file: int
    data: bytes | None

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, "")
        if self.data is not None:
            files[name] = self.data
        elif name != "run.json":
            del files[name]


@dataclass(frozen=True)
class Crowd:
    """As many ranks as this, each with a copy of one flight record: what is within the bounds of
    one may be too much together."""

    file: int
    ranks: int

    def apply(self, files: Files) -> None:
        name = _chosen(files, self.file, ".flight")
        data = bytearray(files[name])
        if len(data) < layout.FILE_BYTES:
            return
        row = list(layout.HEADER.unpack_from(data))
        for rank in range(self.ranks):
            row[2:5] = (1000 + rank, rank, self.ranks)
            layout.HEADER.pack_into(data, 0, *row)
            files[f"ranks/{rank}.flight"] = bytes(data)


Change = Field | Link | Text | Value | Bytes | Whole | Crowd


def _chosen(files: Files, number: int, *endings: str) -> str:
    names = [name for name in sorted(files) if name.endswith(endings)]
    return (names or sorted(files))[number % len(names or files)]


def changed_json(text: bytes, path: tuple[int, ...], new: str) -> bytes:
    """The document with this text in place of the value to which the path leads."""
    mark = "\x00here\x00"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return new.encode()
    box: Any = None
    key: Any = None
    value = document
    for step in path:
        if not isinstance(value, dict | list) or not value:
            break
        box, key = value, (list(value) if isinstance(value, dict) else range(len(value)))
        key = key[step % len(value)]
        value = box[key]
    if box is None:
        return new.encode()
    box[key] = mark
    try:
        made = json.dumps(document)
    except (ValueError, RecursionError):
        return new.encode()
    return made.replace(json.dumps(mark), new).encode("utf-8", "surrogatepass")


_place = st.integers(0, 60)
_path = st.lists(st.integers(0, 40), max_size=6).map(tuple)
_number = st.sampled_from(NUMBERS) | st.integers(0, 2**64 - 1)
_odd = st.sampled_from(ODD_TEXTS)
_few = st.integers(0, 12)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Field, _few, st.sampled_from(sorted(AREAS)), _place, _few, _number),
    st.builds(Link, _few, _place, st.integers(-3, 5000)),
    st.builds(Text, _few, _place, _path, _odd, st.sampled_from((0, 0, 0, 3, 5000))),
    st.builds(Crowd, _few, st.sampled_from((1, 3, 12, 48))),
    st.builds(Value, _place, _place, _path, _odd),
    st.builds(Bytes, _place, st.integers(0, 2**32), st.binary(max_size=64), st.booleans()),
    st.builds(
        Whole,
        _place,
        st.none()
        | st.binary(max_size=300)
        | st.sampled_from([text.encode() for text in ODD_TEXTS])
        | st.sampled_from([b"\n" * (1 << 17), b'{"time_ns":' * 60_000, b"x" * (3 << 20)]),
    ),
)


@dataclass(frozen=True)
class Case:
    """One input: a recorded run, what is changed in it, and in what form it comes. `torn`: what is
    done to the bytes of the archive."""

    run: str
    unreported: bool
    changes: tuple[Change, ...]
    packed: bool
    torn: tuple[int, bytes] | None
    form: str
    view: int

    def write(self, files: Files, place: Path) -> Path:
        """The directory or the archive, below an empty directory."""
        files = dict(files)
        if self.unreported:
            files.pop("report.json", None)
        for change in self.changes:
            change.apply(files)
        if self.packed:
            data = archive(files)
            if self.torn is not None:
                at, other = self.torn
                at %= len(data) + 1
                data = data[:at] + other + data[at + len(other) :]
            (place / "packed").write_bytes(data)
            return place / "packed"
        run = place / "run"
        for name, data in files.items():
            path = run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for at in range(0, len(data), 1 << 16):  # zeros become holes: they cost no time
                    piece = data[at : at + (1 << 16)]
                    if piece.count(0) == len(piece):
                        file.seek(len(piece), 1)
                    else:
                        file.write(piece)
                file.truncate(len(data))
        return run


def archive(files: Files) -> bytes:
    """As `artefact.pack` makes it, of files that may be anything."""
    target = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=target, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as made,
    ):
        for name, data in files.items():
            member = tarfile.TarInfo(f"run/{name}")
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return target.getvalue()


def cases(runs: tuple[str, ...]) -> st.SearchStrategy[Case]:
    """Inputs made of these recorded runs."""
    return st.builds(
        Case,
        st.sampled_from(runs),
        st.booleans(),
        st.lists(CHANGES, min_size=1, max_size=4).map(tuple),
        st.integers(0, 4).map(lambda number: number == 4),
        st.none() | st.tuples(st.integers(0, 2**32), st.binary(min_size=1, max_size=64)),
        st.sampled_from(("--text", "--json", "--junit", "logs", "stacks")),
        st.integers(0, 4),
    )
