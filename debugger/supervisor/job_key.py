"""The key of distcore's groups in a run on one host: a file in the run directory, which only its
owner can read. What lies in torch's store then lets nobody into a group.

Across hosts the user hands one to all of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ..record.runs.run_directory import RunDirectory

USERS = "DISTCORE_KEY_FILE"
VARIABLE = "DISTDEBUG_KEY_FILE"
"""The file of the key that is made here. The user's goes before it, and a program sees none that it
has not been given."""
FILE = "group.key"
_BYTES = 32


def variables(environment: Mapping[str, str], directory: RunDirectory) -> dict[str, str]:
    """The variable that names the key, for ranks that are all on this host (`DISTDEBUG_ONE_HOST`).
    Where the user has set it, to nothing even, that holds."""
    if not environment.get("DISTDEBUG_ONE_HOST") or USERS in environment:
        return {}
    if not directory.write_text(FILE, secrets.token_hex(_BYTES)):
        return {}
    return {VARIABLE: str(directory.path / FILE)}
