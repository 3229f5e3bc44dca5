"""torch's modules as this package uses them: untyped, for its stubs leave out what is private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed
import torch.distributed.distributed_c10d

dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d

Wrapped = Callable[..., Any]
