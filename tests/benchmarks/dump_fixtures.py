"""What `distdebug report` says of dumps of torch's flight recorder, for all fixtures on stock gloo.

    python tests/benchmarks/dump_fixtures.py buggy [--keep DIR] [--at-once N] [NAME ...]
    python tests/benchmarks/dump_fixtures.py correct [NAME ...]
    python tests/benchmarks/dump_fixtures.py judge DIR

`buggy` starts each buggy fixture, has its ranks write their dumps where it stands still or ends,
and compares what is said of them with `fixtures/expected`, as far as the fields can prove that
(`tests/support/provable.py`). `correct` has the ranks of each correct fixture write them again and
again, and at their end: nothing may be said of any. `judge` looks at what `--keep` has left in DIR,
or what lies in an unpacked `fixtures/recorded/gloo_dumps.tar.xz`. Ends with 1 where one is wrong.
The torch is that of the Python that runs this.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import dumped
from tests.support.fixture_table import BUGGY, CORRECT, expected, names, patient_scripts
from tests.support.provable import admitted, fault, findings, provable


@dataclass(frozen=True)
class Row:
    """A fixture, and what is wrong with what is said of its dumps."""

    name: str
    truth: str
    can: bool = False
    said: str = ""
    fault: str = ""
    sets: int = 1
    admitted: bool = False
    """Innocent ranks are suspected, and it is said that the truth may lie where nothing is seen."""

    def __str__(self) -> str:
        scope = f"{self.sets} sets" if not self.truth else "in" if self.can else "out"
        verdict = f"WRONG: {self.fault}" if self.fault else "right"
        if self.admitted:
            verdict = "innocent, as admitted:"
        return f"{self.name:32} {self.truth:34} {scope:3} {verdict:6} {self.said}"


def judged(folder: Path, name: str) -> Row:
    """What is said of the dumps in the folder."""
    one = expected(name)
    can = provable(one, folder)
    found = findings(folder)
    said = "; ".join(f"{each.kind} {list(each.culprits)} {each.message[:300]}" for each in found)
    truth = f"{one['outcome']} {one['culprits']}"
    innocent = not can and admitted(one, found)
    return Row(name, truth, can, said, fault(one, can, found), admitted=innocent)


def buggy(scripts: Path, keep: Path, name: str) -> Row:
    """A fixture at its hang."""
    dumped.at_the_hang(expected(name), scripts, keep / name)
    return judged(keep / name, name)


def correct(scripts: Path, keep: Path, name: str) -> Row:
    """A fixture at work: what is said of the first dumps of which something is."""
    sets = 0
    for folder in dumped.at_work(expected(name), scripts, keep / name):
        sets += 1
        if found := findings(folder):
            said = f"{folder.name}: {found[0].kind} {list(found[0].culprits)} {found[0].message}"
            return Row(name, "", False, said, "a correct program is accused", sets)
    return Row(name, "", sets=sets)


def starts_its_own_ranks(name: str) -> bool:
    """Of such a program nobody can have the ranks write anything."""
    return bool(expected(name)["command"] == "exec")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("buggy", "correct", "judge"))
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the dumps go")
    parser.add_argument("names", nargs="*")
    args = parser.parse_intermixed_args()
    if args.what == "judge":
        (place,) = map(Path, args.names)
        kept = sorted({path.parent.name for path in place.glob("*/rank_*")} & {*names(("",))})
        return table(lambda name: judged(place / name, name), kept, 1)
    chosen = args.names or names(BUGGY if args.what == "buggy" else CORRECT)
    own = list(filter(starts_its_own_ranks, chosen))
    with tempfile.TemporaryDirectory(prefix="dumps-", dir="/tmp") as copied:
        scripts = patient_scripts(Path(copied, "scripts"))
        measure = buggy if args.what == "buggy" else correct
        keep = args.keep or Path(copied, "kept")
        status = table(
            partial(measure, scripts, keep), [one for one in chosen if one not in own], args.at_once
        )
    if own:
        print(f"not looked at, for they start their own ranks: {' '.join(own)}")
    return status


def table(measure: Callable[[str], Row], chosen: Sequence[str], at_once: int) -> int:
    """Print a line for each; 1 where one is wrong."""
    rows = []
    with ThreadPoolExecutor(at_once) as pool:
        for row in pool.map(measure, chosen):
            print(row, flush=True)
            rows.append(row)
    wrong = [row.name for row in rows if row.fault]
    able = [row for row in rows if row.can]
    print(
        f"{len(rows)} fixtures, {sum(row.sets for row in rows)} sets of dumps: {len(wrong)} wrong"
        f"; of {len(able)} the dumps can prove the truth, right of those "
        f"{sum(not row.fault for row in able)}; of the others "
        f"{sum(row.admitted for row in rows)} have innocent ranks suspected, as admitted"
    )
    if wrong:
        print(f"wrong: {' '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
