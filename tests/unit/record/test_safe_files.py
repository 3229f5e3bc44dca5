"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.record.safe_files import replacing


@pytest.mark.parametrize("lasts", [True, False])
def test_it_takes_the_place_of_what_was_there_once_it_is_whole(tmp_path: Path, lasts: bool) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"before")
    with replacing(path, lasts=lasts) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_of_one_that_failed_there_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "gone" / "report.json"):
        pass
