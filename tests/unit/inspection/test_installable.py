"""What is in the way of an install is said in one sentence, before anything is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug.inspection.injection import NotInstallable, target
from distdebug.record.writing.writer import FlightWriter

PID = 7
GDB = "/usr/bin/gdb"


@pytest.fixture(autouse=True)
def gdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: GDB)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a rank that the layer may come into: torch 2.15 on Python 3.11."""
    packages = tmp_path / "site-packages"
    (packages / "torch" / "lib").mkdir(parents=True)
    (packages / "torch" / "version.py").write_text("__version__ = '2.15.0+cpu'\n")
    at = tmp_path / "proc" / str(PID)
    for folder in (at / "ns", tmp_path / "proc" / "self" / "ns"):
        folder.mkdir(parents=True)
        for kind in ("mnt", "pid"):
            (folder / kind).symlink_to(f"{kind}:[1]")
    (at / "stat").write_text(f"{PID} (python) S 1 {' '.join(['0'] * 48)}\n")
    (at / "status").write_text(
        f"Name:\tpython\nUid:\t{os.geteuid()}\t{os.geteuid()}\t0\t0\nTracerPid:\t0\n"
    )
    (at / "mem").touch()
    (at / "environ").write_bytes(b"RANK=0\0")
    (at / "cmdline").write_bytes(b"python\0train.py\0")
    (at / "exe").symlink_to("/usr/bin/python3.11")
    write_maps(at, packages)
    return tmp_path / "proc"


def write_maps(at: Path, packages: Path, python: str = "311", more: str = "") -> None:
    minor = python[1:]
    places = [
        f"/usr/lib/python3.{minor.rstrip('t')}/lib-dynload/_json.cpython-{python}-x86_64-linux-gnu.so",
        f"/usr/lib/libpython3.{minor}.so.1.0",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        f"{packages}/torch/lib/libtorch_python.so",
        *filter(None, [more]),
    ]
    rows = [
        f"{(number + 1) << 20:x}-{(number + 2) << 20:x} r-xp 00000000 08:01 42   {place}\n"
        for number, place in enumerate(places)
    ]
    (at / "maps").write_text("".join(rows))


def test_a_rank_that_it_may_come_into(proc: Path) -> None:
    found = target(PID, proc=proc)
    assert (found.python, found.by_remote_exec) == ((3, 11), False)
    assert found.executable == "/usr/bin/python3.11"
    assert dict(found.libraries) == {
        "/usr/lib/libpython3.11.so.1.0": 2 << 20,
        "/usr/lib/x86_64-linux-gnu/libc.so.6": 3 << 20,
    }


def test_from_python_314_on_the_interpreter_itself_is_asked(proc: Path, tmp_path: Path) -> None:
    write_maps(proc / str(PID), tmp_path / "site-packages", "314")
    assert target(PID, proc=proc).by_remote_exec
    # Where it was told to take nothing from outside, gdb is the way.
    (proc / str(PID) / "environ").write_bytes(b"PYTHON_DISABLE_REMOTE_DEBUG=1\0")
    assert not target(PID, proc=proc).by_remote_exec
    (proc / str(PID) / "environ").write_bytes(b"RANK=0\0")
    (proc / str(PID) / "cmdline").write_bytes(b"python\0-X\0disable-remote-debug\0train.py\0")
    assert not target(PID, proc=proc).by_remote_exec


def older_torch(at: Path, packages: Path) -> None:
    (packages / "torch" / "version.py").write_text("__version__ = '2.13.1'\n")


def damaged_torch(at: Path, packages: Path) -> None:
    (packages / "torch" / "version.py").unlink()


def no_torch(at: Path, packages: Path) -> None:
    rows = (at / "maps").read_text().splitlines(keepends=True)
    (at / "maps").write_text("".join(row for row in rows if "torch" not in row))


def traced(at: Path, packages: Path) -> None:
    text = (at / "status").read_text()
    (at / "status").write_text(text.replace("TracerPid:\t0", "TracerPid:\t4711"))


def of_another_user(at: Path, packages: Path) -> None:
    text = (at / "status").read_text()
    mine = os.geteuid()
    (at / "status").write_text(text.replace(f"Uid:\t{mine}\t{mine}", "Uid:\t4321\t4321"))


def stopped(at: Path, packages: Path) -> None:
    (at / "stat").write_text((at / "stat").read_text().replace(") S", ") T"))


def ended(at: Path, packages: Path) -> None:
    (at / "stat").write_text((at / "stat").read_text().replace(") S", ") Z"))


def in_a_container(at: Path, packages: Path) -> None:
    (at / "ns" / "mnt").unlink()
    (at / "ns" / "mnt").symlink_to("mnt:[2]")


def musl(at: Path, packages: Path) -> None:
    write_maps(at, packages, more="/lib/ld-musl-x86_64.so.1")


def recorded(at: Path, packages: Path) -> None:
    write_maps(at, packages, more="/home/x/.distdebug/latest/ranks/0.flight")


def recorded_by_rank(at: Path, packages: Path) -> None:
    write_maps(at, packages, more=mapped_record(packages.parent / "ranks"))


def mapped_record(folder: Path) -> str:
    """What the kernel calls a record that has taken its rank's name."""
    folder.mkdir()
    made = folder / f"pid-{os.getpid()}.flight"
    writer = FlightWriter(made)
    writer.take_name(folder / "0.flight")
    rows = Path("/proc/self/maps").read_text().splitlines()
    del writer
    (name,) = (row.split(None, 5)[5] for row in rows if str(made) in row)
    return name


def without_gil(at: Path, packages: Path) -> None:
    write_maps(at, packages, "313t")


def old_python(at: Path, packages: Path) -> None:
    write_maps(at, packages, "39")


def replaced_python(at: Path, packages: Path) -> None:
    (at / "exe").unlink()
    (at / "exe").symlink_to("/usr/bin/python3.11 (deleted)")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (older_torch, "its torch is 2.13.1: groups that exist already can be observed from"),
        (damaged_torch, "which torch it has cannot be read"),
        (no_torch, "it has not loaded torch"),
        (traced, "process 4711 traces it already"),
        (of_another_user, "it belongs to user 4321"),
        (stopped, "it is stopped by a signal"),
        (ended, "it has ended"),
        (in_a_container, "in a container that has its own files"),
        (musl, "its C library is musl"),
        (recorded, "distdebug records it already"),
        (recorded_by_rank, "distdebug records it already"),
        (without_gil, "its Python has no GIL"),
        (old_python, "its Python is 3.9: it takes 3.10 or newer"),
        (replaced_python, "its Python was replaced since it was started"),
    ],
)
def test_what_is_in_the_way(
    proc: Path, tmp_path: Path, change: Callable[[Path, Path], None], sentence: str
) -> None:
    change(proc / str(PID), tmp_path / "site-packages")
    with pytest.raises(NotInstallable, match=sentence):
        target(PID, proc=proc)


def test_the_record_of_an_install_that_was_given_up_is_not_in_the_way(
    proc: Path, tmp_path: Path
) -> None:
    name = mapped_record(tmp_path / "ranks")
    write_maps(proc / str(PID), tmp_path / "site-packages", more=name)
    shutil.rmtree(tmp_path / "ranks")
    assert target(PID, proc=proc).pid == PID


def test_without_gdb(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotInstallable, match="there is no gdb on this host"):
        target(PID, proc=proc)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may trace everything")
def test_without_the_right_to_trace(proc: Path) -> None:
    (proc / str(PID) / "mem").chmod(0)
    (proc / "self" / "status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    with pytest.raises(NotInstallable, match="CAP_SYS_PTRACE"):
        target(PID, proc=proc)
