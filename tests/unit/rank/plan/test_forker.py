"""Which programs are for GPUs: by their script and their own modules, not by what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.rank.plan.forker import asks_for_devices
from distdebug.record.requests.plan_request import Request

FOR_GPUS = {
    "nccl": "dist.init_process_group('nccl')",
    "by device": "dist.init_process_group('cpu:gloo,cuda:NCCL')",
    "no backend": "dist.init_process_group()\nmodel = model.cuda()",
    "a mesh": "init_device_mesh('cuda', (8,))",
    "an accelerator": "device = torch.accelerator.current_accelerator()",
    "one or the other": "dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')",
}
NOT = {
    "gloo": "dist.init_process_group('gloo')",
    "gloo, and GPUs if any": "dist.init_process_group('gloo')\nif torch.cuda.is_available(): go()",
    "a comment": "dist.init_process_group()  # or 'nccl'",
    "words": "'''Runs on nccl and cuda.'''\ndist.init_process_group()",
    "no Python": "def (",
}


def request(tmp_path: Path, target: Path) -> Request:
    return Request(str(target), (), 2, run_dir=str(tmp_path))


@pytest.mark.parametrize("source", FOR_GPUS.values(), ids=FOR_GPUS)
def test_a_program_for_gpus(source: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert asks_for_devices(request(tmp_path, script))


@pytest.mark.parametrize("source", NOT.values(), ids=NOT)
def test_one_that_is_not(source: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert not asks_for_devices(request(tmp_path, script))


def test_its_own_modules_are_of_it_and_none_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "parts" / "inner"
    package.mkdir(parents=True)
    script = tmp_path / "train.py"
    script.write_text("import torch\nfrom parts.inner import setup\n")
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "setup.py").write_text("from . import names\n")
    (package / "names.py").write_text("BACKEND = 'gloo'\n")
    assert not asks_for_devices(request(tmp_path, script))
    (package / "names.py").write_text("BACKEND = 'nccl'\n")
    assert asks_for_devices(request(tmp_path, script))
