"""What a rank puts on record of the branches that it takes: values without any code of the user's,
within bounds, of each thread; and of a branch that is taken too often that it was left out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.rank.record import branches, call_site
from distdebug.rank.record.branches import BranchWatch
from distdebug.record.reading.branch_file import BranchFile
from distdebug.record.snapshot import OFF_AND_ON, Taken
from distdebug.record.writing.branch_writer import FILE_BYTES, file_name

WORLD = ("0", 0)
Outcomes = list[tuple[str, str]]


class Group:
    name, incarnation = WORLD


class Watched:
    """A program of the user's, followed in this process."""

    def __init__(self, folder: Path) -> None:
        (folder / "ranks").mkdir()
        self.folder = folder
        self.watch = BranchWatch(folder)
        self._before = self.watch.at_calls(Group())  # type: ignore[arg-type]
        self._calls = 0

    def call(self) -> None:
        """Before a call of the group."""
        known: Any = SimpleNamespace(channel=None)
        self._before("", (), known, self._calls)
        self._calls += 1

    def program(self, text: str, **names: Any) -> dict[str, Any]:
        """What such a file of the user's defines."""
        path = self.folder / "train.py"
        path.write_text(text)
        space = {"__name__": "__main__", "call": self.call, **names}
        exec(compile(text, str(path), "exec"), space)
        return space

    def run(self, text: str, **names: Any) -> list[Taken]:
        """What is on record of `main` in such a file, up to its first call."""
        main = self.program(text, **names)["main"]
        self.watch.begin()
        main()
        self.call()
        return self.taken(-1)

    def taken(self, after: int) -> list[Taken]:
        found = BranchFile(self.folder / "ranks" / file_name(os.getpid())).intervals(WORLD, after)
        assert found is not None
        return [one for interval in found for one in interval.taken]


def outcomes(taken: list[Taken]) -> Outcomes:
    return [(one.branch.source, one.outcome) for one in taken]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(call_site, "kinds", {__file__: call_site.OWN})
    made = Watched(tmp_path)
    yield made
    made.watch.detach()


HOSTILE = """
class Type(type):
    def __getattribute__(cls, name):
        ran.append(name)
        return type.__getattribute__(cls, name)

class Thing(metaclass=Type):
    kept = 3
    def __init__(self):
        self.__dict__["own"] = 7
    @property
    def asked(self):
        return 5
    def __getattr__(self, name):
        ran.append("__getattr__")
        return 6
    def __repr__(self):
        ran.append("__repr__")
    __str__ = __format__ = __repr__
    def __len__(self):
        ran.append("__len__")
        return 1
    def __eq__(self, other):
        ran.append("__eq__")
        return True
    def __bool__(self):
        ran.append("__bool__")
        return True

class Text(str):
    def __repr__(self):
        ran.append("__repr__")
    __getitem__ = __len__ = __repr__

thing, text = Thing(), Text("abc")

def main():
    ran.clear()
    if thing:
        pass
    if thing is None:
        pass
    if thing.asked > 3:
        pass
    if thing.missing > 3:
        pass
    if thing.own > 3:
        pass
    if thing == 4:
        pass
    if text is thing:
        pass
"""


def test_no_code_of_the_users_is_run_to_show_values(watched: Watched) -> None:
    plain: list[str] = []
    watched.program(HOSTILE, ran=plain)["main"]()
    ran: list[str] = []
    taken = watched.run(HOSTILE, ran=ran)
    assert ran == plain == ["__bool__", "__getattr__", "__eq__"]
    values = {
        one.branch.source: dict(zip(one.branch.names, one.values or (), strict=False))
        for one in taken
    }
    assert values["if thing:"] == {"thing": "a Thing"}
    assert values["if thing.asked > 3:"] == {"thing.asked": None}
    assert values["if thing.missing > 3:"] == {"thing.missing": None}
    assert values["if text is thing:"] == {"text": "a Text", "thing": "a Thing"}


def test_secrets_are_masked_with_the_text_that_they_are_compared_with(watched: Watched) -> None:
    text = "def main(api_key='s3cr3t'):\n    if api_key == 's3cr3t':\n        pass\n"
    (taken,) = watched.run(text)
    assert taken.values == ("(redacted)",)
    path = watched.folder / "ranks" / file_name(os.getpid())
    assert "s3cr3t" not in f"{taken.branch}"
    assert b"if api_key == 's3cr3t'" not in path.read_bytes()


def test_values_and_files_are_bounded(watched: Watched) -> None:
    text = (
        "def main(a='x' * 10**6, b=[0] * 10**6, c=1 << 10**5, d={}, e=0, f=0, g=0, h=0):\n"
        "    if (a, b, c, d, e, f, g, h) is None:\n"
        "        pass\n"
    )
    (taken,) = watched.run(text)
    assert taken.values is not None
    assert taken.values[1:4] == ("a list of 1000000", "an int of 100001 bits", "a dict of 0")
    assert len(taken.values) == 6
    assert max(len(one or "") for one in taken.values) <= 64
    main = watched.program("def main(x):\n    if x:\n        call()\n", x=0)["main"]
    for _ in range(40_000):
        main("y" * 60)
    assert (watched.folder / "ranks" / file_name(os.getpid())).stat().st_size == FILE_BYTES


LOOP = """
def main(turns=5000):
    for at in range(turns):
        if at % 2:
            pass
    if turns > 3:
        pass
"""


def test_a_branch_that_is_taken_too_often_is_left_out_and_comes_back(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "BRANCHES_OFF_S", 0.0)
    watched.watch._forget()
    main = watched.program(LOOP)["main"]
    watched.watch.begin()
    main()
    watched.call()
    left_out = {source for source, outcome in outcomes(watched.taken(-1)) if outcome == OFF_AND_ON}
    assert left_out
    assert len(watched.taken(-1)) <= branches.MOST + 8
    watched.call()  # the pause is over
    watched.call()
    main(2)
    watched.call()
    assert outcomes(watched.taken(2)) == [
        ("for at in range(turns):", "an item"),
        ("if at % 2:", "False"),
        ("for at in range(turns):", "an item"),
        ("if at % 2:", "True"),
        ("for at in range(turns):", "no more items"),
        ("if turns > 3:", "False"),
    ]


def test_generators_and_recursion_and_what_is_dropped_of_them(watched: Watched) -> None:
    text = (
        "def count(n):\n"
        "    while n > 0:\n"
        "        yield n\n"
        "        n -= 1\n"
        "def down(n):\n"
        "    return down(n - 1) if n else 0\n"
        "def main():\n"
        "    turns = count(2)\n"
        "    next(turns)\n"
        "    down(1)\n"
        "    next(turns)\n"
    )
    taken = watched.run(text)
    assert [(one.branch.function, one.outcome, one.values) for one in taken] == [
        ("count", "True", ("2",)),
        ("down", "True", ("1",)),
        ("down", "False", ("0",)),
        ("count", "True", ("1",)),
    ]


def test_an_exception_that_is_caught_says_where_it_was_raised(watched: Watched) -> None:
    text = (
        "def load(n):\n"
        "    raise ValueError(n)\n"
        "def main():\n"
        "    try:\n"
        "        load(1)\n"
        "    except ValueError:\n"
        "        pass\n"
    )
    rows = outcomes(watched.run(text))
    assert ("load(1)", "raised ValueError at train.py:2") in rows


CONDITIONS = """
def main(x=3, xs=(1, 2)):
    for one in xs:  # a note
        pass
    match x:  # a note
        case 3:
            pass
    if any(one > 5 for one in xs):
        pass
    kept = [one for one in xs if one > 1]
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="without positions all is the line's")
def test_names_of_conditions_in_other_statements(watched: Watched) -> None:
    taken = [one for one in watched.run(CONDITIONS) if one.branch.function != "<genexpr>"]
    values = {one.branch.source: one.values for one in taken[:5]}
    assert values == {
        "for one in xs:  # a note": ("a tuple of 2",),
        "case 3:": ("3",),
        "if any(one > 5 for one in xs):": ("a tuple of 2",),
    }
    filters = [(one.branch.part, one.outcome, one.values) for one in taken if one.branch.part]
    assert filters[-2:] == [("one > 1", "False", ("1",)), ("one > 1", "True", ("2",))]


def test_at_the_end_of_the_process_nothing_is_followed_any_more(watched: Watched) -> None:
    main = watched.program("def main(x):\n    if x:\n        pass\n")["main"]
    watched.watch.begin()
    main(0)
    watched.watch.rest()
    main(1)
    assert outcomes(watched.taken(-1)) == [("if x:", "False")]
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(4) is None
    assert sys.gettrace() is None


def test_each_thread_has_its_own(watched: Watched) -> None:
    text = "def main(x):\n    call()\n    if x:\n        pass\n    call()\n"
    main = watched.program(text)["main"]
    watched.watch.begin()
    main(0)
    thread = threading.Thread(target=main, args=(1,))
    thread.start()
    thread.join()
    path = watched.folder / "ranks" / file_name(os.getpid())
    found = BranchFile(path).intervals(WORLD, 0)
    assert found is not None
    made = [(one.thread, [taken.outcome for taken in one.taken]) for one in found]
    assert made == [(0, ["False"]), (1, []), (1, ["True"])]


def test_a_forked_child_has_a_file_of_its_own(watched: Watched) -> None:
    text = "def main(x):\n    if x:\n        pass\n"
    main = watched.program(text)["main"]
    watched.watch.begin()
    main(0)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            watched.watch.detach()
            main(1)
            watched.call()
            watched.watch.begin()
            main(1)
            watched.call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    watched.call()
    assert outcomes(watched.taken(-1)) == [("if x:", "False")]
    child = BranchFile(watched.folder / "ranks" / file_name(pid)).intervals(WORLD, -1)
    assert child is not None
    assert [taken.outcome for one in child for taken in one.taken] == ["True"]


def test_a_fault_of_its_own_switches_it_off_and_the_program_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[BaseException] = []
    monkeypatch.setattr(branches, "report_own_fault", lambda _what, error: said.append(error))
    monkeypatch.setattr(branches, "conditions", lambda _code: 1 / 0)
    done: list[int] = []
    main = watched.program("def main():\n    if done == []:\n        done.append(1)\n", done=done)
    watched.watch.begin()
    main["main"]()
    main["main"]()
    watched.call()
    assert done == [1]
    assert [type(one) for one in said] == [ZeroDivisionError]
