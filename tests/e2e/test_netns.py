"""Ranks that have a network of their own, as a user starts them: under torchrun, on gloo."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import pytest

from distdebug.system.processes import descendants
from tests.support import runs

PROGRAMS = Path(__file__).parents[1]
LINKED = PROGRAMS / "ranks" / "scripts" / "linked.py"
FAULT = "link(0<->1, reset) @ frame 10"
LIMIT_S = 60.0

SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(10))
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (), 2)
"""


@pytest.mark.root
def test_a_reset_between_two_ranks_of_gloo(tmp_path: Path) -> None:
    """Both ends are named; with a limit of seconds, for torchrun has to load torch as well."""
    flags = ["-n", "2", "--netns", "--inject", FAULT]
    done = runs.run("run", [*flags, str(LINKED), "--backend", "gloo"], tmp_path)
    assert done.exit_code == 1, done.explain()
    (finding,) = done.errors
    assert (finding["kind"], finding["culprits"]) == ("rank_exception", [0, 1]), done.explain()
    assert "the connection between ranks 0,1 broke" in finding["message"]
    assert finding["injected"] == FAULT
    assert finding["detected_after_s"] < 10
    (injected,) = done.report["injected"]
    assert injected["fired"]
    assert "reset of frame 10 from rank " in injected["where"]


@pytest.mark.root
@pytest.mark.long
def test_without_a_fault(tmp_path: Path) -> None:
    """The twin; with the rendezvous that torchrun has for one host, too."""
    for number, more in enumerate(([], ["--standalone"])):
        flags = [*more, "-n", "2", "--netns", str(LINKED), "--backend", "gloo"]
        (tmp_path / str(number)).mkdir()
        done = runs.run("run", flags, tmp_path / str(number))
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()


@pytest.mark.root
@pytest.mark.long
def test_at_detail(tmp_path: Path) -> None:
    """The network on which ranks compare their calls leads through the switch as well."""
    flags = ["-n", "2", "--netns", "--debug-level", "DETAIL", "--inject", "link(0->1, delay=1ms)"]
    done = runs.run("run", [*flags, str(LINKED), "--backend", "gloo"], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert done.report["injected"][0]["fired"]


@pytest.mark.root
@pytest.mark.long
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    arguments = ["-n", "2", "--netns", "--inject", "link(0->1, delay=1ms)"]
    arguments += [str(LINKED), "--backend", "gloo", "--seconds", "300"]
    process = runs.start("run", arguments, directory, tmp_path)
    happened = directory / "injected.jsonl"
    while not happened.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    watched = {pid: os.pidfd_open(pid) for pid in descendants(process.pid)}
    assert len(watched) >= 5  # the switch, the warden, torchrun, two ranks
    process.kill()
    process.communicate()
    for pid, descriptor in watched.items():
        assert select.select([descriptor], [], [], LIMIT_S)[0], f"process {pid} is still there"
        os.close(descriptor)


@pytest.mark.root
@pytest.mark.long
def test_ranks_that_do_not_know_their_number_as_they_start(tmp_path: Path) -> None:
    """The fault cannot happen, and the run says so."""
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    flags = ["--netns", "--inject", "link(0->1, reset)", "--", sys.executable, str(script)]
    done = runs.run("exec", flags, tmp_path, {"WORLD_SIZE": "2"})
    assert done.exit_code == 2, done.explain()
    assert "must find its RANK in the environment as it starts" in done.stderr


@pytest.mark.parametrize("command", [["exec", "--netns", "--", "true"]])
def test_what_cannot_be_is_one_sentence(command: list[str], tmp_path: Path) -> None:
    """As root the number of ranks is missing; else root is."""
    done = runs.run(command[0], command[1:], tmp_path)
    assert done.exit_code == 2, done.explain()
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("distdebug: --netns needs ")
    assert not (tmp_path / "run").exists()
