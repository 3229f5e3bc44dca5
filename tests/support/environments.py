"""Environments of Python as pipx, uv tool and conda make them: distdebug in one, and the program
with its torch in another. The packages are links to those of the environment that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

TORCH = ("torch", "functorch")
"""How the names begin that belong to torch."""
OURS = ("distdebug", "_distdebug", "distcore", "__editable__", "psutil", "wrapt")
"""Those of distdebug, and of what comes with it and is not torch's."""
_PIPS = """#!{python}
import sys
from _distdebug_entry import main
sys.exit(main())
"""


def environment_without(names: tuple[str, ...], folder: Path) -> Path:
    """Make an environment in the folder, without the packages whose names begin so; its Python."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
    )
    python = folder / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    for one in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not one.name.startswith((*names, "__pycache__", "pip", "a1_coverage")):
            (Path(paths["purelib"]) / one.name).symlink_to(one)
    for program in ("py-spy", "mpiexec"):
        beside = Path(sys.executable).with_name(program)
        if beside.exists():
            (folder / "bin" / program).symlink_to(beside)
    if "distdebug" not in names:
        script = folder / "bin" / "distdebug"
        script.write_text(_PIPS.format(python=python))
        os.chmod(script, 0o755)
    return python
