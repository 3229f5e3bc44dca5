"""Makes the environment of `make gpu` where nothing can be fetched, and what is carried there.

python -m tests.gpu.environment VENV WHEELS      an environment of these wheels and of this
                                                 Python's own packages, torch among them
python -m tests.gpu.environment --wheels WHEELS  fills that folder, where packages can be fetched
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 50_000_000
"""Of the wheels: what is carried to a machine is often limited to 64 MiB, the source included."""
FOR = "3.12"
GLIBC = (17, 24, 27, 28)
"""The newest glibc 2.x that a wheel may ask for; pip matches each by itself."""
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "wrapt")
"""Of what tests need only what those of the parts do."""
CHECK = """
import torch
assert torch.cuda.is_available(), "torch finds no GPU"
print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())
print(torch.cuda.get_device_name())
"""


def wheels(folder: Path) -> None:
    """Load these and what they need, in the versions of constraints.txt, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    constraints = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    # Their markers speak of the Python that runs pip, not of that which it loads for.
    constraints.write_text("\n".join(line.partition(";")[0] for line in lines))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--only-binary=:all:", "--python-version", FOR, "--implementation", "cp"]
    for platform in platforms:
        pip += ["--platform", platform]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["nccl"], *TOOLS]
    # The machine has torch; setuptools builds the package there.
    asked = ["setuptools", *(one for one in asked if not one.startswith("torch>"))]
    subprocess.run([*pip, "-c", str(constraints), "-d", str(folder), *asked], check=True)
    constraints.unlink()
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {len(list(folder.iterdir()))} wheels, {size / 1e6:.0f} MB")
    assert size < MOST_BYTES, f"more than {MOST_BYTES / 1e6:.0f} MB: leave something out"


def make(venv: Path, folder: Path) -> None:
    """What this Python has already is taken from there where its version will do."""
    shutil.rmtree(venv, ignore_errors=True)
    # Without pip, whose own wheel not every Python brings along: this Python's installs there.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "torch_of_the_machine.pth").write_text("\n".join(sorted(here)) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    pip += ["--disable-pip-version-check", "--no-compile", "--find-links", str(folder)]
    subprocess.run([*pip, *TOOLS, "-e", f"{ROOT}[nccl]"], check=True)
    subprocess.run([python, "-c", CHECK], check=True)


def main() -> None:
    if sys.argv[1] == "--wheels":
        wheels(Path(sys.argv[2]))
    else:
        make(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
