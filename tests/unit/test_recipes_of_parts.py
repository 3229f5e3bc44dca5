"""The recipes of CONTRIBUTING.md for a collective, a fault, a backend and a screen are walked in a
copy: with all steps the new one works, and without one of them the checker names the file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support import complete
from tests.support.importable import make_importable

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 6
PACKAGES = ("debugger", "distcore", "tui")


@dataclass(frozen=True)
class Recipe:
    """`steps`: by file (what is there, what is there instead), several times; nothing there: a new
    file. `before`: the steps of another recipe, after which this one is walked. `read`: folders and
    files that the checker reads. `packages`: those that are copied whole for `script`, which must
    print `prints`."""

    check: Callable[[Path], Iterator[str]]
    read: tuple[str, ...]
    steps: Mapping[str, tuple[tuple[str, str], ...]]
    packages: tuple[str, ...]
    script: str
    prints: str
    before: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


PLANS = '''    def rotate(self, output: Tensor, tensor: Tensor) -> Body:
        """To the next rank; one step of as many bytes as the tensor has."""

'''
COMPOSED = """        after, before = (self._rank + 1) % self._size, (self._rank - 1) % self._size
        body = self._engine.all_to_all(
            [target if rank == before else target[:0] for rank in range(self._size)],
            [source if rank == after else source[:0] for rank in range(self._size)],
        )
"""
COLLECTIVE = Recipe(
    complete.of_collectives,
    (
        "debugger/record/ops.py",
        *(f"distcore/{one}" for one in ("groups", "engine", "tcp", "mpi", "nccl")),
        "tests/support/__init__.py",
        "tests/support/known_calls.py",
    ),
    {
        "debugger/record/ops.py": (
            (
                "}\nOP_NAMES: tuple",
                '    "rotate": Op(Pattern.OTHER, methods=("rotate",)),\n}\nOP_NAMES: tuple',
            ),
        ),
        "distcore/groups/collectives.py": (
            (
                "    # -- reducing ---",
                """    def rotate(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        opts = options(AllGather, opts)
        target, source, staging = self._pair(self._caller("rotate"), output, tensor)
        text = call_text.moving("rotate", tensor.dtype, tensor.numel())
"""
                + COMPOSED
                + """        body = staging.around(body)
        return self._issue("rotate_", text, opts, body, [output])

    # -- reducing ---""",
            ),
        ),
        "tests/support/known_calls.py": (
            (
                "def _ring(",
                """def _rotate(m: Making) -> bytes:
    into = torch.zeros_like(m.anything(0))
    (m.group or dist.group.WORLD).rotate(into, m.anything(m.rank)).wait()
    m.same(into, m.anything((m.rank - 1) % m.size), "what the rank before gave")
    return b""


def _ring(""",
            ),
            ("    _barrier,\n)", "    _barrier,\n    _rotate,\n)"),
        ),
    },
    ("debugger", "distcore"),
    """
import os, sys, torch, torch.distributed as dist
dist.ProcessGroup.rotate = lambda self, *args: None  # as torch will have it
import distdebug, distcore
from pathlib import Path
from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Process
from tests.support.known_calls import KnownCall
child = os.fork()
rank = 0 if child else 1
distdebug.install("INFO", "run")
store = "file://" + os.path.abspath("store")
dist.init_process_group("tcp", init_method=store, rank=rank, world_size=2)
KnownCall("rotate").run()
dist.barrier()
if child:
    assert os.waitpid(child, 0)[1] == 0
    calls = FlightReader(Path("run/ranks/0.flight")).view(Process(True)).history.recent(9)
    print([str(call.signature) for call in calls if call.signature.op == "rotate"])
else:
    os._exit(0)
""",
    "['rotate(float32[5])']",
)

PLAN = replace(
    COLLECTIVE,
    before=COLLECTIVE.steps,
    steps={
        "distcore/groups/collectives.py": (
            (COMPOSED, "        body = self._engine.rotate(target, source)\n"),
        ),
        "distcore/engine/base.py": (
            (
                "    def barrier(self) -> Body: ...\n",
                """    def barrier(self) -> Body: ...
    def rotate(self, output: Tensor, tensor: Tensor) -> Body: ...
""",
            ),
        ),
        "distcore/tcp/engine.py": (
            (
                "    def barrier(self)",
                PLANS
                + """        def body(net: Any) -> None:
            after, before = (net.rank + 1) % net.size, (net.rank - 1) % net.size
            sends = [Send(after, bytes_of(tensor))]
            net.exchange(sends, [Receive(before, bytes_of(output))])

        return body

    def barrier(self)""",
            ),
            (
                "from torch import Tensor\n",
                """from torch import Tensor
from ..base.buffers import bytes_of
from ..transports.base import Receive, Send
""",
            ),
            ("from collections.abc", "from typing import Any\nfrom collections.abc"),
        ),
        "distcore/mpi/engine.py": (
            (
                "    def barrier(self)",
                PLANS
                + """        def body(net: Line) -> None:
            after, before = (net.rank + 1) % net.size, (net.rank - 1) % net.size
            self._exchange(net, [(after, tensor)], [(before, output)])

        return body

    def barrier(self)""",
            ),
        ),
        "distcore/nccl/engine.py": (
            (
                "    def barrier(self)",
                PLANS.replace("Body", "Planned")
                + """        none, size = tensor[:0], self._size
        after, before = (self._rank + 1) % size, (self._rank - 1) % size
        outputs = [output if rank == before else none for rank in range(size)]
        inputs = [tensor if rank == after else none for rank in range(size)]
        return self.all_to_all(outputs, inputs)

    def barrier(self)""",
            ),
        ),
    },
)

FAULT = Recipe(
    complete.of_faults,
    (
        "debugger/docs/reference",
        "debugger/faults",
        "debugger/rank/inject",
        "tests/faults/cases.py",
        "tests/unit/faults/test_spec.py",
    ),
    {
        "debugger/faults/actions.py": (
            (
                '    Action(\n        "exit",',
                """    Action("sulk", Family.PROCESS, "the process leaves with 7"),
    Action(
        "exit",""",
            ),
        ),
        "debugger/rank/inject/process.py": (
            ('    "exit": leave,\n', '    "exit": leave,\n    "sulk": sulk,\n'),
            (
                "def throw(",
                """def sulk(context: Context) -> None:
    context.announce()
    os._exit(7)


def throw(""",
            ),
        ),
        "debugger/docs/reference/faults.md": (
            ("| `exit(", "| `sulk(rank=N)` | the process leaves with 7 |\n| `exit("),
        ),
        "tests/faults/cases.py": (
            (
                '    Case("segfault",',
                """    Case("sulking", ("sulk(rank=1) @ all_reduce#5",), "rank_died", (1,), 94),
    Case("segfault",""",
            ),
        ),
        "tests/unit/faults/test_spec.py": (
            (
                '    ("kill(rank=1)",',
                '    ("sulk(rank=1)", "sulk", (1,), {}),\n    ("kill(rank=1)",',
            ),
        ),
    },
    ("debugger",),
    """
import os
from types import SimpleNamespace
from distdebug.faults.actions import ACTIONS
from distdebug.faults.spec import parse, usage
fault = parse("sulk(rank=1) @ all_reduce#5", world_size=4)
print(fault.action, fault.ranks, usage(ACTIONS["sulk"]))
from distdebug.rank.inject.process import ACTS
child = os.fork()
if not child:
    ACTS["sulk"](SimpleNamespace(announce=lambda: None))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
""",
    "sulk (1,) sulk(rank=N)\n7",
)

BACKEND = Recipe(
    complete.of_backends,
    ("distcore", "tests/ranks", "tests/unit/distcore/nccl"),
    {
        "distcore/toy/backend.py": (
            (
                "",
                '''"""The backend "toy": tcp by another name."""

from __future__ import annotations

from dataclasses import dataclass

from ..groups.process_group import CoreGroup, Origin
from ..tcp.backend import TcpBackend


@dataclass(frozen=True)
class ToyBackend:
    """See `backend.Backend`."""

    name: str = "toy"
    devices: tuple[str, ...] = ("cpu",)

    def unavailable(self) -> str | None:
        return None

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """Connect the ranks."""
        return TcpBackend().create(origin, group_class)
''',
            ),
        ),
        "distcore/backend.py": (
            ("TcpBackend(), ", "TcpBackend(), ToyBackend(), "),
            (
                "from .tcp.backend import TcpBackend\n",
                "from .tcp.backend import TcpBackend\nfrom .toy.backend import ToyBackend\n",
            ),
        ),
        "distcore/README.md": (
            ("Two more backends", '"toy" is tcp by another name. Two more backends'),
        ),
        "tests/ranks/distcore/test_toy.py": (
            (
                "",
                '''"""The backend "toy"."""

import pytest


@pytest.mark.distributed(nproc=2, backend="toy")
def test_toy() -> None:
    from tests.support.conformance import check_backend

    assert check_backend("toy")
''',
            ),
        ),
    },
    ("distcore",),
    """
import os, torch.distributed as dist
import distcore
from tests.support.known_calls import KnownCall
child = os.fork()
rank = 0 if child else 1
store = "file://" + os.path.abspath("store")
dist.init_process_group("toy", init_method=store, rank=rank, world_size=2)
for op in ("all_reduce", "ring", "all_to_all"):
    KnownCall(op).run()
dist.barrier()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(dist.get_backend())
else:
    os._exit(0)
""",
    "toy",
)

SCREEN = Recipe(
    complete.of_screens,
    ("tui", "tests/unit/tui/snapshots.py"),
    {
        "tui/screens/hosts.py": (
            (
                "",
                '''"""The hosts of the run, and how many ranks each has."""

from __future__ import annotations

from collections import Counter

from ..picture import Picture
from ..text import line
from .base import Body, View


class Hosts(View):
    name = "hosts"
    key = "g"
    title = "Hosts"
    explained = "A line a host: its name, and how many ranks it has."

    def body(self, picture: Picture, width: int, height: int) -> Body:
        many = Counter(row.host for row in picture.rows.values())
        return Body(lines=self.matching([line(f"{host}: {many[host]} ranks") for host in many]))
''',
            ),
        ),
        "tui/keys.py": (
            ("StacksView, WaitsView)", "StacksView, WaitsView, Hosts)"),
            (
                "from .screens.overview import",
                "from .screens.hosts import Hosts\nfrom .screens.overview import",
            ),
        ),
        "tests/unit/tui/snapshots.py": (
            ('        "waits": ("w",),\n', '        "waits": ("w",),\n        "hosts": ("g",),\n'),
        ),
    },
    ("debugger", "tui"),
    """
import asyncio
from pathlib import Path
from tests.unit.tui.driver import a_year_later, made, opened
from distdebug import tui
assert Path(tui.__file__).is_relative_to(Path.cwd()), tui.__file__
async def drive():
    async with opened(made(Path.cwd(), "late", 4).path, a_year_later) as driver:
        await driver.press("g")
        print(driver.app._sheet.lines[0][0][0])
        await driver.press("question_mark", "end")
        assert "A line a host" in driver.text
asyncio.run(drive())
""",
    "node0: 4 ranks",
)

RECIPES = {
    "collective": COLLECTIVE,
    "plan": PLAN,
    "fault": FAULT,
    "backend": BACKEND,
    "screen": SCREEN,
}
WITHOUT = [(name, path) for name, recipe in RECIPES.items() for path in recipe.steps]


def _copy(what: str, target: Path) -> None:
    source, to = ROOT / what, target / what
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy2(source, to)
    else:  # with what is compiled, which is for files of that age
        away = shutil.ignore_patterns("snapshots", "*.pyc.*")
        shutil.copytree(source, to, ignore=away, dirs_exist_ok=True)


def walked(recipe: Recipe, target: Path, without: str = "", whole: bool = False) -> Path:
    """A copy of what is needed, with all steps but one."""
    for what in (*recipe.read, *(recipe.packages if whole else ())):
        _copy(what, target)
    left = {name: changes for name, changes in recipe.steps.items() if name != without}
    for name, changes in (*recipe.before.items(), *left.items()):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for there, instead in changes:
            text = path.read_text() if there else ""
            assert there in text, f"{name} has changed: it has no {there!r}"
            path.write_text(text.replace(there, instead, 1) if there else instead)
    return target


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_missing_in_the_tree(name: str) -> None:
    assert list(RECIPES[name].check(ROOT)) == []


@pytest.mark.parametrize(("name", "without"), WITHOUT)
def test_the_file_that_is_missing_is_named(name: str, without: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    assert len(recipe.steps) <= MOST_FILES
    said = list(recipe.check(walked(recipe, tmp_path, without)))
    place = {
        "tests/ranks/distcore/test_toy.py": "tests/",
        "debugger/rank/inject/process.py": complete.INJECT,
        "distcore/toy/backend.py": "distcore/*/backend.py",
        "tui/screens/hosts.py": complete.SCREENS,
    }.get(without, without)
    assert any(sentence.startswith(place) for sentence in said), said


@pytest.mark.parametrize("name", RECIPES)
def test_with_all_steps_it_works(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    walked(recipe, tmp_path, whole=True)
    assert list(recipe.check(tmp_path)) == []
    make_importable(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", recipe.script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == recipe.prints
