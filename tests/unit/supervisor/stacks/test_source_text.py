"""The source that a frame of another process stands in."""

from __future__ import annotations

import os
from pathlib import Path

from distdebug.supervisor.stacks.stacks import Frame, line_of, text_of


def test_of_a_container_its_own_files_are_read(tmp_path: Path) -> None:
    """What lies at the same path here is another program."""
    (tmp_path / "root" / "job").mkdir(parents=True)
    inside = tmp_path / "root" / "job" / "train.py"
    inside.write_text("import torch\nwork.wait()\n")
    assert line_of(Frame("step", "/job/train.py", 2, root=str(tmp_path / "root"))) == "work.wait()"
    assert line_of(Frame("step", "/job/train.py", 2)) == ""
    assert line_of(Frame("step", str(inside), 2)) == "work.wait()"
    assert [line_of(Frame("step", str(inside), number)) for number in (-1, 0, 3)] == [""] * 3


def test_nothing_but_a_file_is_opened(tmp_path: Path) -> None:
    """The names are the process's own word; opening a FIFO would wait for its other end."""
    os.mkfifo(tmp_path / "train.py")
    (tmp_path / "odd.py").write_bytes(b"# coding: nobody-knows\nx = 1\n")
    for path in ("<string>", "train.py", "/dev/zero", str(tmp_path), str(tmp_path / "none.py")):
        assert text_of(path) == "", path
    assert text_of(str(tmp_path / "train.py")) == ""
    assert text_of(str(tmp_path / "odd.py")) == ""
