"""Which words of a command line are secrets, and which only look like it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distdebug.record import secret_words
from distdebug.record.layout import Definition
from distdebug.record.reading.reader import FlightReader
from distdebug.record.secret_words import (
    MOST_VALUE,
    MOST_VARIABLES_BYTES,
    REDACTED,
    allowed_variables,
    masked,
    sentence,
)
from distdebug.record.snapshot import Process
from distdebug.record.writing.writer import FlightWriter

TOKEN = "q9w8e7r6t5"


@pytest.mark.parametrize(
    "words",
    [
        f"--hf-token {TOKEN}",
        f"--hf_token={TOKEN}",
        f"--wandb-api-key {TOKEN}",
        f"--apiKey {TOKEN}",
        f"--password {TOKEN}",
        f"-password={TOKEN}",
        f"--login.password {TOKEN}",
        f"wandb.api_key={TOKEN}",
        f"+trainer.secret={TOKEN}",
        f"AWS_SECRET_ACCESS_KEY={TOKEN} python",
        f"--aws-credentials {TOKEN}",
        f"--key=-{TOKEN}",
        f"--key -{TOKEN}",
        f"s3://user:{TOKEN}@host/bucket",
        f"--url=https://user:{TOKEN}@host/x",
        f"hf_{TOKEN * 3}",
        f"--name ghp_{TOKEN * 3}",
    ],
)
def test_secrets(words: str) -> None:
    found = masked(["train.py", *words.split(), "--epochs", "3"])
    assert TOKEN not in " ".join(found)
    assert REDACTED in " ".join(found)
    assert (found[0], found[-2:]) == ("train.py", ["--epochs", "3"])
    assert REDACTED in sentence(words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--tokenizer gpt2",
        "--pad-token 0",
        "--max-tokens 2048",
        "--num-key-value-heads 8",
        "--token-file /run/secrets/hf",
        "--keypoints 17",
        "--sort-key loss",
        "--secret --verbose",
        "tokens=512",
        "https://host/path",
        "s3://bucket/a@b",
        "--monkey x",
    ],
)
def test_what_is_none(words: str) -> None:
    assert masked(words.split()) == words.split()
    assert sentence(words.split()) == ""


@pytest.mark.parametrize(
    "name",
    ["MASTER_ADDR", "RANK", "TORCHELASTIC_RUN_ID", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "PMI_RANK"],
)
def test_what_launchers_and_backends_read(name: str) -> None:
    assert allowed_variables({name: "7"}) == {name: "7"}


@pytest.mark.parametrize(
    "name", ["HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "RANKS", "MY_RANK", "OMPI_MCA_x", "SLURM_KEY"]
)
def test_what_is_not_on_the_list(name: str) -> None:
    assert allowed_variables({name: "7"}) == {}


@pytest.mark.parametrize(
    "name", ["TORCH_HUB_TOKEN", "DISTDEBUG_KEY", "NCCL_Secret", "GLOO_PASSWORD"]
)
def test_secret_variables(name: str) -> None:
    assert allowed_variables({name: "hunter2"}) == {name: REDACTED}


def test_a_user_in_a_url() -> None:
    found = allowed_variables({"MASTER_URL": "tcp://me:hunter2@node0:29500/x"})
    assert found == {"MASTER_URL": f"tcp://{REDACTED}@node0:29500/x"}


def test_it_is_small() -> None:
    found = allowed_variables({f"NCCL_{number:04}": "x" * 5000 for number in range(1000)})
    assert 10 < len(found) < MOST_VARIABLES_BYTES / MOST_VALUE
    assert {len(value) for value in found.values()} == {MOST_VALUE}
    assert sum(len(name) + len(value) for name, value in found.items()) <= MOST_VARIABLES_BYTES


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
    assert all(name == name.upper() for name in secret_words.NAMES)
    assert not any(name.startswith(secret_words.PREFIXES) for name in secret_words.NAMES)
