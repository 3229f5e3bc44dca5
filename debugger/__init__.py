"""distdebug: run any torch.distributed program and be told which rank went wrong and why."""

from __future__ import annotations

__version__ = "0.1.0"
