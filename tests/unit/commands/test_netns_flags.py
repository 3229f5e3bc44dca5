"""`--netns`: where it cannot be, one sentence says so before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from distdebug.commands import inject_flags
from distdebug.errors import UsageError
from distdebug.supervisor.rank_network import switch


def read(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    inject_flags.add(parser.add_argument_group())
    return argparse.Namespace(debugger="pdb", **vars(parser.parse_args(flags)))


@pytest.fixture
def possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "why_impossible", lambda: "")


def refused(args: argparse.Namespace, size: int | None) -> str:
    with pytest.raises(UsageError) as caught:
        inject_flags.own_network(args, size)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_only_root_makes_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert refused(read("--netns"), 2) == (
        "--netns needs root; without it faults of links work on the backend tcp alone, which needs "
        "nothing of the kind"
    )
    assert inject_flags.own_network(read(), 2) == 0


def test_without_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(switch, "TUN", tmp_path / "tun")
    assert f"--netns needs {tmp_path / 'tun'}, which this machine does not have" in refused(
        read("--netns"), 2
    )


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    ("size", "words"), [(None, "use `distdebug run -n N`, or set WORLD_SIZE"), (251, "for 250")]
)
def test_how_many(size: int | None, words: str) -> None:
    assert words in refused(read("--netns"), size)
    assert inject_flags.own_network(read("--netns"), 250) == 250


@pytest.mark.usefixtures("possible")
def test_no_editor_gets_in() -> None:
    args = read("--netns")
    args.debugger = "debugpy"
    assert "leave out --debugger debugpy" in refused(args, 2)


def plan(*flags: str) -> Any:
    return inject_flags.plan(read(*flags), 2)


def test_no_backend_rules_out_a_fault_there() -> None:
    fault = ("--inject", "link(0->1, reset)", "--inject-backend", "gloo")
    with pytest.raises(UsageError, match="link works on tcp, and not on gloo") as caught:
        plan(*fault)
    assert caught.value.below[-1].strip() == "with --netns (as root) it works on every backend"
    found = plan("--netns", *fault)
    assert found.namespaces
    assert [one.action for one in found.faults] == ["link"]
    assert not plan("--inject", "kill(rank=1)").namespaces


def test_faults_of_links_are_drawn_there() -> None:
    flags = ("--inject-random", "60", "--seed", "3", "--inject-backend", "gloo")
    links = {"link", "partition"}
    assert not links & {one.action for one in plan(*flags).faults}
    assert links <= {one.action for one in plan("--netns", *flags).faults}
