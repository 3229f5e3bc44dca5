"""What of the environment goes on record, and that it is there under the rank's name, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distdebug.record.layout import Definition
from distdebug.record.reading.reader import FlightReader
from distdebug.record.safe_text import environment
from distdebug.record.safe_text.environment import MOST_BYTES, MOST_VALUE, REDACTED, allowed
from distdebug.record.snapshot import Process
from distdebug.record.writing.writer import FlightWriter


@pytest.mark.parametrize(
    "name",
    ["MASTER_ADDR", "RANK", "TORCHELASTIC_RUN_ID", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "PMI_RANK"],
)
def test_what_launchers_and_backends_read(name: str) -> None:
    assert allowed({name: "7"}) == {name: "7"}


@pytest.mark.parametrize(
    "name", ["HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "RANKS", "MY_RANK", "OMPI_MCA_x", "SLURM_KEY"]
)
def test_what_is_not_on_the_list(name: str) -> None:
    assert allowed({name: "7"}) == {}


@pytest.mark.parametrize(
    "name", ["TORCH_HUB_TOKEN", "DISTDEBUG_KEY", "NCCL_Secret", "GLOO_PASSWORD"]
)
def test_secrets(name: str) -> None:
    assert allowed({name: "hunter2"}) == {name: REDACTED}


def test_a_user_in_a_url() -> None:
    found = allowed({"MASTER_URL": "tcp://me:hunter2@node0:29500/x"})
    assert found == {"MASTER_URL": f"tcp://{REDACTED}@node0:29500/x"}


def test_it_is_small() -> None:
    found = allowed({f"NCCL_{number:04}": "x" * 5000 for number in range(1000)})
    assert 10 < len(found) < MOST_BYTES / MOST_VALUE
    assert {len(value) for value in found.values()} == {MOST_VALUE}
    assert sum(len(name) + len(value) for name, value in found.items()) <= MOST_BYTES


def test_the_last_word_counts_and_outlives_the_files_name(tmp_path: Path) -> None:
    writer = FlightWriter(tmp_path / "pid-7.flight")
    for text in ('{"RANK": "0"}', '{"RANK": "1", "X": 2}', "[1]", "{"):
        writer.define(Definition.ENVIRONMENT, text)
    os.rename(tmp_path / "pid-7.flight", tmp_path / "1.flight")
    reader = FlightReader(tmp_path / "1.flight")
    assert reader.environment == {}
    reader.view(Process(alive=True))
    assert reader.environment == {"RANK": "1", "X": "2"}


def test_the_list_is_sorted_into_names_and_prefixes() -> None:
    assert all(name == name.upper() for name in environment.NAMES)
    assert not any(name.startswith(environment.PREFIXES) for name in environment.NAMES)
