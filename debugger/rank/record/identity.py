"""The identity of this process, beside a rank: for the head of its record."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import torch

from ...record.secret_words import masked


def identity() -> dict[str, Any]:
    """Its host, command, parent, and the versions of what it runs on."""
    return {
        "host": socket.gethostname(),
        "argv": [argument[:200] for argument in masked(sys.argv[:20])],
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parent": os.getppid(),
    }
