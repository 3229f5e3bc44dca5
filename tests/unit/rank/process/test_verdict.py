"""Who is told of the run's verdict by an exception: ranks, and not the launcher above them."""

from __future__ import annotations

import json
import sys
import threading
import types
from pathlib import Path

import pytest

from distdebug.errors.in_ranks import FindingRaised
from distdebug.rank.process.main_thread import MainThread
from distdebug.rank.process.verdict import VerdictWatch
from distdebug.rank.torch_private.gloo import GlooSockets


@pytest.mark.parametrize(
    ("launches", "rank", "told"),
    [(True, None, False), (True, "1", True), (False, None, True), (False, "1", True)],
)
def test_a_launcher_is_not_told(
    launches: bool,
    rank: str | None,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "torch.distributed.launcher.api"
    monkeypatch.delitem(sys.modules, name, raising=False)
    if launches:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    main_thread = MainThread()
    monkeypatch.setattr(main_thread, "interrupt", lambda: None)
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps({"kind": "deadlock", "text": "in a cycle"}))
    watch = VerdictWatch(tmp_path, main_thread, GlooSockets())
    looking = threading.Thread(target=watch.look)
    looking.start()
    looking.join()
    assert watch.was_raised is told
    if told:
        with pytest.raises(FindingRaised, match="in a cycle"):
            watch.check()
    else:
        watch.check()


def test_what_ranks_raise_is_imported_from_the_package() -> None:
    from torch.distributed import DistBackendError

    from distdebug import MismatchError, errors

    assert MismatchError is errors.MismatchError
    assert issubclass(MismatchError, DistBackendError)
    with pytest.raises(ImportError):
        from distdebug import NoSuchError  # noqa: F401
