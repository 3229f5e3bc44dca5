"""What one writes the other reads: the notes and files that ranks and readers share."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from distdebug.record import notes
from distdebug.record.notes import NoteData, OwnFindingNote, RaisedNote, UnwindingNote
from distdebug.record.requests.supervision import Verdict
from distdebug.record.snapshot import Note

ROOT = Path(__file__).parents[3]
DEFINITIONS = ROOT / "debugger" / "record" / "notes.py"
NOTE = OwnFindingNote("op_mismatch", (2,), (0, 1), ("default_pg", 0), 7, "ranks disagree")
VALUES: dict[str, Any] = {
    "bool": True,
    "float": 1.5,
    "int": 3,
    "str": "rank 3",
    "tuple[str, int]": ("default_pg", 1),
    "tuple[int, int]": (4, 5),
    "tuple[int, ...]": (6, 7),
    "tuple[str, ...]": ("train.py:3 in main", "train.py:9 in step"),
}


KINDS: list[type[NoteData]] = [
    one for one in vars(notes).values() if isinstance(one, type) and hasattr(one, "KIND")
]


def test_every_kind_has_its_own_name() -> None:
    assert len({kind.KIND for kind in KINDS}) == len(KINDS) >= 20


@pytest.mark.parametrize("kind", KINDS, ids=[kind.KIND for kind in KINDS])
def test_what_is_written_is_read(kind: type[NoteData]) -> None:
    """Each field with a value that is not its default, through JSON as on a record."""
    known: dict[str, Any] = {"finding": "op_mismatch"}
    given = {
        name: known.get(name, VALUES[str(type_).removesuffix(" | None")])
        for cls in reversed(kind.__mro__)
        if issubclass(cls, NoteData) and cls is not NoteData
        for name, type_ in cls.__annotations__.items()
    }
    note = kind(**given)
    data = json.loads(json.dumps(note.data()))
    assert kind.read(data) == note
    for name in given:
        damaged = kind.read({**data, name: {"not": "this"}})
        assert damaged is None or getattr(damaged, name) != given[name]
    on_record = Note(kind.KIND, 5, "a message", None, data)
    assert kind.matches(on_record)
    assert kind.among([on_record, Note("other", 6, "")]) == [on_record]


def test_what_is_unknown_of_an_exception_is_not_written() -> None:
    assert RaisedNote("ValueError", communication=False).data() == {
        "type": "ValueError",
        "stack": (),
        "communication": False,
    }
    assert UnwindingNote.read({"type": "ValueError", "call": None}) == UnwindingNote("ValueError")


@pytest.mark.parametrize(
    "change",
    [
        {"finding": "practical_joke"},
        {"culprits": []},
        {"culprits": 3},
        {"group": "default_pg"},
        {"group": ["default_pg", "first"]},
        {"seq": "seven"},
    ],
)
def test_of_a_damaged_one_nothing_is_believed(change: dict[str, Any]) -> None:
    assert OwnFindingNote.read({**NOTE.data(), **change}) is None
    assert OwnFindingNote.read({}) is None


def test_a_finding_of_a_message_has_no_number() -> None:
    note = OwnFindingNote("p2p_mismatch", (1,), (), ("a", 3), None)
    assert OwnFindingNote.read(json.loads(json.dumps(note.data()))) == note


def bare_names(source: str) -> list[int]:
    """The lines that write or read a note by the bare name of its kind or of one of its fields."""
    if "note" not in source.lower():
        return []
    names = {kind.KIND for kind in KINDS}
    tree = ast.parse(source)
    of_notes = {"note"} | {
        argument.arg
        for argument in ast.walk(tree)
        if isinstance(argument, ast.arg)
        and isinstance(argument.annotation, ast.Name)
        and argument.annotation.id == "Note"
    }

    def is_bare(node: ast.AST) -> bool:
        if isinstance(node, ast.IfExp):
            return is_bare(node.body) or is_bare(node.orelse)
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    def names_a_kind(node: ast.AST) -> bool:
        return any(isinstance(one, ast.Constant) and one.value in names for one in ast.walk(node))

    def is_data(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "data"
            and isinstance(node.value, ast.Name)
            and node.value.id in of_notes
        )

    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="note"), args=[first, *_]):
                wrong = is_bare(first)
            case ast.Call(func=ast.Attribute(attr="notes"), args=given):
                wrong = any(map(is_bare, given))
            case ast.Call(func=ast.Name(id="Note")):
                named = [one.value for one in node.keywords if one.arg == "kind"]
                wrong = any(is_bare(one) for one in (*node.args[:1], *named))
            case ast.Call(func=ast.Attribute(value=value, attr="get")):
                wrong = is_data(value)
            case ast.Subscript(value=value):
                wrong = is_data(value)
            case ast.Compare(left=ast.Attribute(attr="kind", value=ast.Name(id=name))):
                # A finding may have the kind of a note, such as `forked`.
                wrong = name in of_notes and any(map(names_a_kind, node.comparators))
            case _:
                wrong = False
        if wrong:
            found.append(node.lineno)
    return found


def test_no_note_has_a_name_outside_the_definitions() -> None:
    files = [path for room in ("debugger", "tui") for path in (ROOT / room).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if path != DEFINITIONS
        for line in bare_names(path.read_text())
    ]
    assert not found, f"{found}: use the types of {notes.__name__}"


@pytest.mark.parametrize(
    "source",
    [
        'recorder.note("exit", "os._exit(1)")',
        'recorder.note("layer_off" if gaps else "part_off", why)',
        'world.notes(3, "exit")',
        'Note("layer_off", 3, "off")',
        'Note(kind="layer_off")',
        'note.kind == "exception"',
        'note.kind in ("exception", "exit")',
        'def f(last: Note): return last.data.get("type")',
        'def f(last: Note): return last.data["type"]',
    ],
)
def test_a_bare_name_is_found(source: str) -> None:
    assert bare_names(source)


@pytest.mark.parametrize(
    "source",
    [
        'recorder.note(ExitNote(), "os._exit(1)")',
        "ExitNote.read(note.data)",
        'finding.kind == "forked"',
        'finding.data.get("message")',
    ],
)
def test_a_type_is_no_bare_name(source: str) -> None:
    assert bare_names(source) == []


def test_a_verdict_comes_back_as_it_was() -> None:
    for verdict in (Verdict("deadlock", "ranks wait"), Verdict("missing_rank", "late", "gil_held")):
        assert Verdict.of_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    for damaged in (None, [], {}, {"kind": "deadlock"}, {"text": "x"}):
        assert Verdict.of_json(damaged) is None
