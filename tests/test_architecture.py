"""The design's import rules hold, and the checker that says so finds what is planted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pytest

from distdebug.record import layout
from distdebug.record.ops import OPS
from tests.support.architecture import violations
from tests.support.module_state import kept
from tests.support.rooms import house, houses

ROOT = Path(__file__).resolve().parents[1]

# Where a module is planted, what it says, and the reason the checker must give (None: it is fine).
PLANTED = [
    ("debugger/record/a.py", "import torch", "costs 2 s"),
    ("debugger/record/a.py", "import psutil", "standard library only"),
    ("debugger/record/a.py", "from ..errors import UsageError", None),
    ("debugger/record/a.py", "from ..diagnosis import verdict", "downward only"),
    ("debugger/record/a.py", "from ..system.proc import read_stat", None),
    ("debugger/system/a.py", "def f():\n    import psutil", "standard library only"),
    ("debugger/system/a.py", "from ..record import layout", "downward only"),
    ("debugger/rank/a.py", "from ..system.proc import read_stat", None),
    ("tui/a.py", "from ..system.proc import read_stat", None),
    ("debugger/errors/__init__.py", "import structlog", "standard library only"),
    ("debugger/errors/__init__.py", "from ..record import layout", "downward only"),
    ("debugger/errors/__init__.py", "import torch", "costs 2 s"),
    ("debugger/errors/in_ranks.py", "import torch, distcore", None),
    ("debugger/errors/in_ranks.py", "from ..diagnosis import verdict", "downward only"),
    ("debugger/diagnosis/a.py", "def f():\n    import numpy", "standard library only"),
    ("debugger/diagnosis/a.py", "from ..record.layout import x", None),
    ("debugger/diagnosis/deep/a.py", "from ...record.layout import x", None),
    ("debugger/diagnosis/deep/a.py", "from ...faults import plan", "downward only"),
    ("debugger/rank/a.py", "import torch.distributed", None),
    ("debugger/rank/a.py", "from ..supervisor import watch", "downward only"),
    ("debugger/rank/a.py", "from .. import supervisor", "downward only"),
    ("debugger/rank/a.py", "from ..diagnosis import verdict", "share only record/"),
    ("debugger/rank/a.py", "import distcore", None),
    ("debugger/rank/a.py", "from torch import _C", "private _C"),
    ("debugger/rank/a.py", "import torch.distributed as d\nd.x._world.y", "private _world"),
    ("debugger/rank/torch_private/a.py", "from torch import _C", None),
    ("debugger/rank/a.py", "self._x = 1", None),
    ("debugger/rank/a.py", "from distdebug.record import layout", "relative imports only"),
    ("debugger/supervisor/a.py", "from ..rank import install", "downward only"),
    ("debugger/supervisor/a.py", "def f():\n    from torch import nn", "costs 2 s"),
    ("debugger/supervisor/a.py", "import importlib\nimportlib.import_module('torch')", "costs 2 s"),
    ("debugger/supervisor/a.py", "from ..diagnosis import verdict\nimport psutil", None),
    ("debugger/supervisor/a.py", "from ..nodes import job", None),
    ("debugger/nodes/a.py", "from ..diagnosis import verdict\nfrom ..faults import plan", None),
    ("debugger/nodes/a.py", "from ..supervisor import watch", "downward only"),
    ("debugger/nodes/a.py", "from ..reports import stored", "downward only"),
    ("debugger/nodes/a.py", "from ..rank import install", "downward only"),
    ("debugger/reports/a.py", "from ..commands import run", "downward only"),
    ("debugger/commands/a.py", "from ..testing import plugin", "downward only"),
    ("debugger/commands/a.py", "import textual", "without a terminal app"),
    ("debugger/commands/a.py", "from distdebug.tui import app", "without a terminal app"),
    ("debugger/commands/a.py", "import distcore", "distcore imports torch"),
    ("debugger/benchmarks/a.py", "import distcore, torch", None),
    (
        "debugger/benchmarks/a.py",
        "from distcore.transports import mesh",
        "distcore's public names",
    ),
    ("debugger/commands/a.py", "from ..launch import torchrun_flags", None),
    ("debugger/launch/a.py", "from ..diagnosis import verdict", "shares only record/"),
    ("debugger/launch/torchrun_flags.py", "import torch", "only inside a function"),
    ("debugger/launch/torchrun_flags.py", "def f():\n    import torch", None),
    ("debugger/hook/a.py", "def f():\n    from ..rank import install", None),
    ("debugger/hook/a.py", "from ..rank import install", "only inside a function"),
    ("debugger/hook/site/sitecustomize.py", "import distdebug.record", None),
    ("debugger/__init__.py", "from .rank import install", "only inside a function"),
    ("debugger/__init__.py", "if TYPE_CHECKING:\n    from .rank import install", None),
    ("debugger/__init__.py", "from .errors import UsageError", None),
    ("debugger/__init__.py", "def f():\n    from .rank import install", None),
    ("debugger/cli.py", "from .commands import run", None),
    ("debugger/__main__.py", "from .cli import main", None),
    ("debugger/attic/a.py", "from ..record import layout", "has no floor"),
    ("debugger/commands/a.py", "from ....record import layout", "too many dots"),
    ("distcore/a.py", "from distdebug.record import layout", "knows nothing"),
    ("distcore/a.py", "import torch", None),
    ("tui/a.py", "from ..record import layout\nimport textual", None),
    ("tui/a.py", "from ..supervisor import watch", "record, diagnosis and reports only"),
    ("tui/a.py", "import distdebug", "record, diagnosis and reports only"),
    ("tui/a.py", "import torch", "costs 2 s"),
    ("tui/a.py", "import distcore", "distcore imports torch"),
    ("tui/a.py", "\n" * 800, "find the seam"),
]


def test_the_packages_keep_the_rules() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(map(str, found))


@pytest.mark.parametrize(("place", "source", "reason"), PLANTED)
def test_a_planted_violation_is_found(
    tmp_path: Path, place: str, source: str, reason: str | None
) -> None:
    rooms = ("record", "diagnosis", "faults", "rank", "nodes", "supervisor", "commands", "testing")
    for room in rooms:
        (tmp_path / "debugger" / room).mkdir(parents=True)
        (tmp_path / "debugger" / room / "__init__.py").write_text('"""A room."""\n')
    planted = tmp_path / place
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(f'"""Planted."""\n{source}\n')
    found = [str(violation) for violation in violations(tmp_path)]
    if reason is None:
        assert found == []
    else:
        assert all(violation.startswith(place) for violation in found), found
        assert any(reason in violation for violation in found), found


def test_a_module_without_a_docstring_is_found(tmp_path: Path) -> None:
    (tmp_path / "tui").mkdir()
    (tmp_path / "tui" / "app.py").write_text("x = 1\n")
    assert [str(v) for v in violations(tmp_path)] == [
        "tui/app.py: no docstring; its first line says why the file exists"
    ]


@pytest.mark.parametrize(
    "module", ["distdebug", "distdebug.cli", "distdebug.record", "distdebug.diagnosis"]
)
def test_importing_it_does_not_import_torch(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "dear = {'torch', 'textual', 'argcomplete', 'distcore', 'distdebug.tui', 'numpy'}; "
        "print(*sorted(dear & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("package", "most_rooms", "most_arrows"),
    [
        # 9 of them: all rooms start processes by the one loader, in hook/; and 9 ask system/.
        # 3 of them: the calls of a run are made fewer as long as a plan of them fails (shrink).
        ("distdebug", 19, 80),
        # 1 of them: how long a branch is not followed is a limit of time, in limits.py.
        ("distdebug.rank", 15, 55),
        # 4 of them: lines are written, read, and made of signatures and snapshots; 2: branches are
        # read of what was written, without secrets; 2: values have the names of replicas'
        # quantities, and are read as files of others are.
        ("distdebug.record", 30, 60),
        ("distdebug.supervisor", 23, 55),
        ("distcore", 16, 55),
    ],
)
def test_a_package_is_understood_from_its_folders(
    package: str, most_rooms: int, most_arrows: int
) -> None:
    found = house(package)
    assert len(found.arrows) <= most_rooms, sorted(found.arrows)
    assert found.count <= most_arrows, found.arrows


LIMIT_OF_TIME = re.compile(r"^_?[A-Z][A-Z0-9_]*_(?:S|NS|MS)\b(?::[^=\n]+)? =", re.MULTILINE)
WITH_LIMITS = (
    "distcore",
    "debugger/diagnosis",
    "debugger/foreign",
    "debugger/inspection",
    "debugger/nodes",
    "debugger/rank",
    "debugger/reports",
    "debugger/supervisor",
    "debugger/testing",
    "tui",
)
LIMITS_OF_THEIR_OWN = {
    "debugger/inspection/as_snapshot.py": "the moment of a look, which is any",
    "debugger/supervisor/command/warden.py": "every run waits for it: it imports little",
    "debugger/rank/ddp.py": "how many nanoseconds a millisecond has",
    "tui/tracks.py": "the axis of a drawing",
}


def test_a_limit_of_time_stands_once_in_its_rooms_limits() -> None:
    for room in WITH_LIMITS:
        for file in sorted((ROOT / room).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if file.name != "limits.py" and not name.startswith(tuple(LIMITS_OF_THEIR_OWN)):
                assert LIMIT_OF_TIME.findall(file.read_text(encoding="utf-8")) == [], name


OP_NAMES = {
    name for op, row in OPS.items() for name in (op, *row.functions, *row.methods, *row.libraries)
}
FEWEST_OF_A_TABLE = 3
WITH_OPS = {
    "debugger/record/ops.py": "the table",
    "debugger/benchmarks/overhead.py": "the calls that are measured",
}


def tables_of_ops(source: str) -> Iterator[int]:
    """Yields the line of each literal that has three names of ops among its items, keys or
    values."""
    if sum(name in source for name in OP_NAMES) < FEWEST_OF_A_TABLE:
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Dict(keys=keys, values=values):
                sides = (keys, values)
            case ast.Set(elts=elts) | ast.List(elts=elts) | ast.Tuple(elts=elts):
                sides = (elts,)
            case _:
                continue
        for side in sides:
            texts = {one.value for one in side if isinstance(one, ast.Constant)}
            if len(texts & OP_NAMES) >= FEWEST_OF_A_TABLE:
                yield node.lineno


def test_what_an_op_is_stands_in_one_table() -> None:
    """Elsewhere it is read there: a new op has one row, and everything knows it."""
    for room in ("debugger", "tui"):
        for file in sorted((ROOT / room).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            found = list(tables_of_ops(file.read_text(encoding="utf-8")))
            assert not found or name in WITH_OPS, f"{name}:{found[0]} is a table of ops of its own"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('SLOW = {"all_reduce", "broadcast", "barrier"}', True),
        ('SIDES = {"send": 1, "recv": 2, "gather": 3}', True),
        ('WORDS = {"a": "allreduce", "b": "alltoall", "c": "reduce"}', True),
        ('if op in ("barrier", "monitored_barrier"): pass', False),
        ('NAMES = ("mean", "sum", "all_reduce")', False),
    ],
)
def test_a_planted_table_of_ops_is_found(source: str, found: bool) -> None:
    assert bool(list(tables_of_ops(source))) is found


READ_PROC = (
    "debugger/system/",
    "debugger/hook/site/",  # it is started in every Python process, and imports nothing of ours
    "distcore/base/linux.py",  # it knows nothing of the debugger
    "distcore/base/background_thread.py",  # nor does it, and a rank without its groups has no more
)


def test_the_kernel_is_asked_in_one_place() -> None:
    found = {
        file.relative_to(ROOT).as_posix()
        for package in ("debugger", "tui", "distcore")
        for file in (ROOT / package).rglob("*.py")
        if "/proc" in (source := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and str(node.value).startswith("/proc")
    }
    assert {name for name in found if not name.startswith(READ_PROC)} == set()


def test_records_are_packed_in_their_room_alone() -> None:
    packed = {name for name, one in vars(layout).items() if isinstance(one, Struct)}
    assert {"GROUP", "HEADER", "SLOT"} <= packed
    for file in [*(ROOT / "debugger").rglob("*.py"), *(ROOT / "tui").rglob("*.py")]:
        source, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
        if name.startswith("debugger/record/") or "record.layout" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("record.layout"):
                assert packed.isdisjoint(one.name for one in node.names), name


def test_no_rule_uses_a_rule() -> None:
    """What several need is in `facts/`: a rule can be read, and left out, by itself."""
    found = house("distdebug.diagnosis.rules")
    assert len(found.arrows) > 12
    assert {rule: used for rule, used in found.arrows.items() if used} == {}


def test_no_rooms_use_each_other() -> None:
    """Nor do the files of a room."""
    names = houses()
    assert {"distdebug", "distdebug.rank", "distdebug.testing", "distdebug.tui"} <= set(names)
    found = {name: circles for name in names if (circles := house(name).circles)}
    assert found == {}


KEPT_IN_RANKS = {
    "install._layer": "the one object, which has all others",
    "api._asked": "a program asks for faults before the layer is there",
    "log/user_log.of_program": "and names its steps",
    "log/rank_log.of_this_process": "and writes to its log, before it has imported torch",
    "torch_private/": "which parts of torch are as known is found by who needs one first",
    "record/call_site.kinds": "answers kept: the same whoever asks",
    "group/outstanding.": "one table of calls, in each call: a way to it costs more than its use",
    "group/tracked_work._": "shorter names of that table",
    "plan/taint.Taint": "objects of other ranks are read by functions found by their names",
    "checks/in_flight._thread": "what each thread has under way, asked with each operator it calls",
}
"""What modules in ranks keep between calls, and why it is no part of the `Layer`."""


def test_ranks_keep_nothing_but_the_layer() -> None:
    """So that a part's arguments tell what it uses, and what uses it is seen where it is made."""
    found = kept(ROOT, ROOT / "debugger" / "rank")
    known = tuple(KEPT_IN_RANKS)
    assert {name: where for name, where in found.items() if not name.startswith(known)} == {}
    unused = [one for one in known if not any(name.startswith(one) for name in found)]
    assert unused == [], "leave these out"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("made = None\ndef observe(x):\n    global made\n    made = x", {"a.made"}),
        ("calls = {}\ndef add(x):\n    calls[x] = 1", {"a.calls"}),
        ("calls = []\ndef add(x):\n    calls.append(x)", {"a.calls"}),
        ("from . import b\ndef add(x):\n    b.on = x", {"b.on"}),
        ("from .b import seen\ndef add(x):\n    seen.add(x)", {"b.seen"}),
        ("class C:\n    def set(self, x):\n        self.x = x\nthe = C()", {"a.the"}),
        ("class C:\n    def __init__(self):\n        self.x = 1\nthe = C()", set()),
        ("calls = []\ndef add(x):\n    calls = []\n    calls.append(x)", set()),
        ("CODES = {}\nfor one in 'ab':\n    CODES[one] = 1", set()),
        ("from . import b\ndef act(x):\n    b.add(x)", set()),
    ],
)
def test_what_a_module_keeps_is_found(tmp_path: Path, source: str, found: set[str]) -> None:
    package = tmp_path / "debugger" / "rank"
    package.mkdir(parents=True)
    (package / "a.py").write_text(source)
    (package / "b.py").write_text("on = 1\nseen = set()\n\n\ndef add(x): ...\n")
    assert set(kept(tmp_path, package)) == found


def test_a_circle_is_found(tmp_path: Path) -> None:
    for name, line in (
        ("a", "from .b import x"),
        ("b", "from . import c"),
        ("c", "from .a import y"),
    ):
        place = tmp_path / "distcore" / f"{name}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"{line}\n")
    found = house("distcore", tmp_path)
    assert found.circles == [["a", "b", "c"]]
    assert (found.count, found.floors) == (3, 0)
