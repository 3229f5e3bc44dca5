"""What the kernel tells of a process or thread, whose name may be any bytes."""

from __future__ import annotations

from pathlib import Path

from distdebug.system import proc


def test_a_name_that_is_no_utf8_is_read(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of a name, and cuts a character in two."""
    (tmp_path / "7").mkdir()
    cut = "データローダ".encode()[:14]
    (tmp_path / "7" / "comm").write_bytes(cut + b"\n")
    (tmp_path / "7" / "status").write_bytes(b"Name:\t" + cut + b"\nState:\tS (sleeping)\n")
    assert proc.name(7, tmp_path).startswith("データロ")
    assert proc.read_status(7, tmp_path)["State"] == "S (sleeping)"
