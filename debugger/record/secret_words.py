"""Keeps secrets out of what is recorded of a command line, and of a process's environment.

Of the environment goes on record what launchers and backends read. A name that is not on that list
is left out, also where it would be harmless.

A value is taken for a secret by the name in front of it: `--hf-token X`, `--password=X`,
`wandb.api_key=X`, `AWS_SECRET_ACCESS_KEY=X`; and by itself where it is a URL with a password, or
has the form of a well-known service's token. A secret that is given in any other way stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# fmt: off
_LAST = frozenset({
    "token", "password", "passwd", "passphrase", "pwd", "pass", "secret", "secrets",
    "credential", "credentials", "creds", "cookie", "apikey", "authtoken", "key", "auth",
    "authorization", "pat",
})
# fmt: on
"""The last word of a secret's name."""
_ANYWHERE = frozenset({"password", "passphrase", "secret", "secrets", "credential", "credentials"})
"""A word anywhere in a secret's name: SECRET_VALUE."""
# fmt: off
_MODELS = frozenset({
    "bos", "eos", "pad", "unk", "mask", "sep", "cls", "image", "special", "num", "max", "min",
    "vocab", "tokenizer", "drop", "sort", "group", "primary", "partition",
})
# fmt: on
"""With one of these words a name is a model's: `--pad-token`, `--sort-key`, `--max-tokens`."""
_ELSEWHERE = frozenset({"file", "path", "dir", "name", "type", "size", "length", "count", "index"})
"""The last word of a name that says where a secret is, or how long: `--token-file`."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAMED = re.compile(
    r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.\-/@]*)(?P<between>[=:])(?P<value>.+)", re.DOTALL
)
_FLAG = re.compile(r"--?[A-Za-z][\w.\-]*")
_URL = re.compile(r"(\b[a-z][a-z0-9+.\-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|sk-[\w-]{20,}|AKIA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)


def is_secret(name: str) -> bool:
    """Whether a flag or a variable of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name.rpartition(".")[2] or name)]
    if not words or _MODELS & set(words) or words[-1] in _ELSEWHERE:
        return False
    return words[-1] in _LAST or bool(_ANYWHERE & set(words))


def masked(words: Iterable[str]) -> list[str]:
    """The words of a command line, with REDACTED in place of every secret."""
    found = []
    expected = False
    for word in words:
        if expected and not word.startswith("--"):
            found.append(REDACTED)
            expected = False
            continue
        expected = bool(_FLAG.fullmatch(word)) and is_secret(word)
        named = _NAMED.fullmatch(word)
        if named and is_secret(named["name"]):
            found.append(f"{named['name']}{named['between']}{REDACTED}")
        else:
            found.append(masked_text(word))
    return found


def masked_text(text: str) -> str:
    """The text, with REDACTED in place of what is a secret by its form."""
    return _FORMS.sub(REDACTED, _URL.sub(rf"\g<1>{REDACTED}", text))


def sentence(words: Iterable[str]) -> str:
    """Returns what the report says of it; "" where nothing was masked."""
    words = list(words)
    if masked(words) == words:
        return ""
    return (
        f"what looks like a secret on the command line is recorded as {REDACTED}; "
        "what the program itself prints or logs is recorded as it is"
    )


PREFIXES = ("MASTER_", "TORCH", "NCCL_", "GLOO_", "DISTDEBUG_", "DISTCORE_")
NAMES = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    )
)
REDACTED = "(redacted)"
MOST_VALUE = 300
MOST_VARIABLES_BYTES = 16 << 10
"""The most bytes of all names and values; what comes after that, by name, is left out."""
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what may be put on record, by name: values that name a secret or a URL's user
    redacted."""
    found: dict[str, str] = {}
    room = MOST_VARIABLES_BYTES
    for name in sorted(environment):
        if not (name in NAMES or name.startswith(PREFIXES)) or not environment[name]:
            continue
        value = REDACTED if _SECRET.search(name) else _USER.sub(REDACTED, environment[name])
        value = value if len(value) <= MOST_VALUE else value[: MOST_VALUE - 3] + "..."
        room -= len(name) + len(value)
        if room < 0:
            break
        found[name] = value
    return found
