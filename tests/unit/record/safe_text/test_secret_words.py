"""Which words of a command line are secrets, and which only look like it."""

from __future__ import annotations

import pytest

from distdebug.record.safe_text.environment import REDACTED
from distdebug.record.safe_text.secret_words import masked, sentence

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
