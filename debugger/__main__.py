"""`python -m distdebug`: the command `distdebug`, where its script is not on the PATH."""

from __future__ import annotations

import sys

from .cli import main
from .hook.loading import ours_first

if __name__ == "__main__":
    ours_first()
    sys.exit(main())
