"""gdb is tried on a process of our own before a rank is touched: one that is older than the
processor harms what it is attached to."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.errors import UsageError
from distdebug.inspection import injection, installing
from distdebug.inspection.injection import NotInstallable, Target
from distdebug.inspection.processes import Job

GDB = """#!/bin/sh
for word; do case $word in "attach "*) pid=${word#attach };; esac; done
%s
echo "distdebug: added 0"
"""


@pytest.mark.parametrize(
    ("does", "why"), [("kill -9 $pid", "harmed"), ("true", "harmed"), ("exit 1", "could not queue")]
)
def test_a_gdb_that_does_not_work_is_found_out(
    does: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdb = tmp_path / "gdb"
    gdb.write_text(GDB % does)
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotInstallable, match=why):
        injection.rehearse(tmp_path)


def test_then_no_rank_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise NotInstallable("it was harmed")

    rank = Target(1, (3, 11), "/usr/bin/python3")
    touched: list[object] = []
    monkeypatch.setattr(injection, "rehearse", fails)
    monkeypatch.setattr(injection, "inject", lambda *one: touched.append(one))
    monkeypatch.setattr(installing, "_targets", lambda _: {1: rank})
    with pytest.raises(UsageError, match="no rank has it: gdb was tried on a process of our own"):
        installing.install(Job(0, "", ()), tmp_path / "run", 1.0)
    assert not touched
