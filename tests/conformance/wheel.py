"""torch's own suite, as it lies in the wheel (`torch_suite.py`), in every mode of the table.

On distcore's backends the tests of gloo's list are run, so that they can be compared with stock.
What torch leaves to MPI has a list of its own, which adds `all_to_all` and lacks what only gloo and
nccl are asked for; a wheel of torch has no MPI to compare it with. Its tests of sub-groups take for
granted that there are three ranks.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import runs

from . import outcomes
from .outcomes import DETAIL, INFO, MPI, STOCK, TCP, Outcome

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("torch_suite.py")
LAYER = {"BACKEND": "gloo", "DIST_PLUGIN": "tests.conformance.distdebug_layer"}
OURS = {"DIST_PLUGIN": "distcore"}
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    STOCK: {"BACKEND": "gloo"},
    INFO: {**LAYER, "DISTDEBUG_LEVEL": INFO},
    DETAIL: {**LAYER, "DISTDEBUG_LEVEL": DETAIL},
    TCP: {**OURS, "BACKEND": "gloo", "RUN_BACKEND": "tcp"},
    MPI: {**OURS, "BACKEND": "gloo", "RUN_BACKEND": "mpi"},
}
LIST_OF_MPI = {mode: {**ENVIRONMENTS[mode], "BACKEND": "mpi"} for mode in (TCP, MPI)}
NAMES_THE_BACKEND = "test_get_backend"
EXPLAINED: Mapping[tuple[str, str], str] = {
    (mode, NAMES_THE_BACKEND): "it compares the backend's name with that of the list"
    for mode in (TCP, MPI)
}
"""By mode and test, why it cannot pass there."""
LIMIT_S = 3600.0


def run(
    environment: Mapping[str, str],
    ranks: int,
    only: Sequence[str] = (),
    tests: Sequence[str] = (),
    limit_s: float = LIMIT_S,
) -> Outcome:
    """What became of each test on so many ranks: of all, of these, or of those whose names hold one
    of the words of `only`."""
    chosen = [f"TestTorch.{name}" for name in tests]
    chosen += [word for pattern in only for word in ("-k", pattern)]
    names = runs.environment({**environment, "WORLD_SIZE": str(ranks), "PYTHONPATH": str(ROOT)})
    names.pop("CI", None)  # there torch's runner writes XML, with a package that we do not need
    with tempfile.TemporaryDirectory(prefix="distdebug-torch-suite-") as place:
        file, log = Path(place, "outcomes"), Path(place, "log")
        names[outcomes.FILE] = str(file)
        command = [sys.executable, str(SUITE), *chosen]
        code = outcomes.run_within(limit_s, command, names, Path.cwd(), log)
        found, output = outcomes.read(file), log.read_text(errors="replace")
    if code is None:
        return Outcome(found, f"not over in {limit_s:g} s", output)
    if not re.search(r"^Ran \d+ tests? in ", output, re.MULTILINE):
        return Outcome(found, f"ended with {code}", output)
    return Outcome(found, output=output)
