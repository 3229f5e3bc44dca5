"""The layer reaches every rank however it is started, and nothing else notices that it is there.

Each of these programs has an interpreter of its own: how Python starts there is what is tested.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import ranks, runs
from tests.support.torch_loaded import TorchLoaded


def has_dist2() -> bool:
    """Whether the file is there; importing torch takes seconds."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return (Path(torch.origin).parent / "distributed" / "_dist2.py").exists()


SCRIPTS = Path(__file__).parents[1] / "scripts"
SELF_LAUNCHING = SCRIPTS / "self_launching.py"
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

IN_RANK = """
import json, subprocess, sys
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
child = subprocess.run(
    [sys.executable, "-c", "print('to the pipe')"], capture_output=True, text=True, check=True
)
"""


def alone(directory: Path, source: str, paths: list[Path]) -> Any:
    """Run a program as the only rank; what it printed last, as JSON."""
    script = directory / "train.py"
    script.write_text(IN_RANK + source)
    extra = {**ALONE, "PYTHONPATH": ":".join(map(str, paths))}
    run = ranks.Ranks(directory / "run", [sys.executable, str(script)], extra=extra)
    assert run.run() == 0, run.explain()
    assert [view.rank for view in run.views()] == [0]
    return json.loads(run.log(0).splitlines()[-1])


NAMESAKES = ("debugger", "tui", "distdebug", "distcore", "structlog", "psutil", "wrapt")
"""Modules of the program's that are called as ours, or as what ours need or needed."""


def test_own_modules_and_sitecustomize(tmp_path: Path) -> None:
    for name in NAMESAKES:
        (tmp_path / f"{name}.py").write_text(f"name = 'the script has {name}'")
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.was_here = True\n")
    found = alone(
        tmp_path,
        f"import builtins, {', '.join(NAMESAKES)}\n"
        f"print(json.dumps([one.name for one in ({', '.join(NAMESAKES)})] + [\n"
        "    builtins.was_here, child.stdout, type(dist.group.WORLD).__name__]))\n",
        [other],
    )
    own = [f"the script has {name}" for name in NAMESAKES]
    assert found == [*own, True, "to the pipe\n", "CheckedGroup"]


def test_a_backend_of_ours_is_there_for_who_names_it(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        "dist.destroy_process_group()\n"
        "before = 'tcp' in dist.Backend.backend_list, 'distcore' in sys.modules\n"
        "dist.init_process_group('cpu:tcp,cuda:tcp', init_method='tcp://127.0.0.1:0',\n"
        "    rank=0, world_size=1)\n"
        "import distcore.errors, torch, pickle\n"
        "dist.all_reduce(torch.ones(2))\n"
        "print(json.dumps({'before': before, 'after': dist.is_backend_available('tcp'),\n"
        "    'backend': dist.get_backend_config(), 'group': type(dist.group.WORLD).__name__,\n"
        "    'pickled': pickle.dumps(distcore.errors.PeerLost).count(b'distcore.errors'),\n"
        "    'mpi': dist.is_mpi_available()}))\n",
        [Path(__file__).parents[3]],
    )
    assert found == {
        "before": [False, False],
        "after": True,
        "backend": "cpu:tcp,cuda:tcp",
        "group": "CheckedGroupOfCoreGroup",
        "pickled": 1,
        "mpi": False,
    }


def test_importing_distdebug_gives_the_layers_modules(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        "import distdebug, distdebug.rank.install\n"
        "from distdebug.rank.group.checked_group import CheckedGroup\n"
        "print(json.dumps({'same': isinstance(dist.group.WORLD, CheckedGroup),\n"
        "    'installed': distdebug.rank.install.install() is not None}))\n",
        [Path(__file__).parents[3]],
    )
    assert found == {"same": True, "installed": True}


@pytest.mark.timeout(300)
def test_ranks_that_the_script_starts_itself(tmp_path: Path) -> None:
    run = ranks.Ranks(tmp_path / "run", [sys.executable, str(SELF_LAUNCHING)])
    assert run.run(250) == 0, run.explain()  # three Pythons import torch, on a full machine
    made = []
    for view in run.views():
        if view.rank < 0:
            continue  # the parent, which is no rank
        assert view.host == socket.gethostname()
        (call,) = ranks.calls(view, SELF_LAUNCHING)
        made.append((view.rank, view.world_size, str(call.signature)))
    expected = [(rank, 2, f"all_reduce(sum, float32[{n}])") for rank in range(2) for n in (1, 2, 3)]
    assert sorted(made) == expected


def test_nothing_is_loaded_without_distdebug() -> None:
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "loaded = [one.value for one in entry_points(group='torch.backends')]  # by torch itself\n"
        "assert not any('distdebug' in one or 'distcore' in one for one in loaded), loaded\n"
        "rooms = {name.split('.')[0] for name in sys.modules}\n"
        "ours = {'distdebug', '_distdebug', '_distdebug_entry', 'sitecustomize'}\n"
        "print(rooms & ours, sys.meta_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        check=True,
        env=runs.environment(),
    )
    assert done.stdout.startswith("set() ")
    assert "sitecustomize" not in done.stdout


def test_groups_that_are_written_in_python(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    script = SCRIPTS / "python_groups.py"
    run = ranks.forked(torch_loaded, tmp_path / "run", 1, script)
    assert run.run() == 0, run.explain()
    (view,) = run.views()
    made = [str(call.signature) for call in ranks.calls(view, script)]
    assert made == [
        "all_reduce(sum, float32[2])",
        "all_to_all_single(float32[2])",
        "all_reduce(sum, float32[2])",
    ]
    (told,) = [note for note in view.notes if note.kind == "layer_off"]
    assert told.message == "recording of ranks that are threads is switched off"


def test_groups_that_choose_their_ranks_themselves(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    script = SCRIPTS / "resized_groups.py"
    run = ranks.forked(torch_loaded, tmp_path / "run", 1, script)
    assert run.run() == 0, run.explain()
    assert "is switched off" not in run.explain()
    (view,) = run.views()
    unknown, other = (note.message for note in view.notes if note.kind == "layer_off")
    own = "is not recorded: its backend 'resized'"
    assert unknown == f"group '1' {own} does not say how many ranks it has"
    assert other == f"group '2' {own} says that its size is 2, and torch that it is 1"
    # The world's, and that of the one that torch knows rightly.
    assert len(ranks.calls(view, script)) == 2


@pytest.mark.skipif(not has_dist2(), reason="this torch has no torch.distributed._dist2")
def test_groups_that_torch_does_not_register_are_told_of(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import datetime, torch\n"
        "from torch.distributed import _dist2\n"
        "group = _dist2.new_group('gloo', datetime.timedelta(seconds=30), 'cpu')\n"
        "group.allreduce([torch.ones(2)]).wait()\n"
    )
    run = ranks.forked(torch_loaded, tmp_path / "run", 1, script)
    assert run.run() == 0, run.explain()
    (view,) = run.views()
    (told,) = [note for note in view.notes if note.kind == "layer_off"]
    assert told.message == "recording of groups of torch.distributed._dist2 is switched off"
