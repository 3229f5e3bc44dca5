"""What the dumps of a fixture can prove of its truth, told from their fields and the truth alone,
never from what the diagnosis says of them; and whether that says what they can.

gloo's recorder has collectives and no messages, not even an entry for one; of each the op, sizes
and dtypes, and whether it has been put away (`retired`), for success and failure alike. So it can
prove of a fixture:

- a mismatch of op, size or dtype, where a rank at fault has made a call at a sequence number of a
  group at which others have made one that differs in it;
- an absence, whatever its cause, where somebody else has made a call that no rank at fault has, in
  a group of which they are known to be: the default one, or one that they have called in;
- a deadlock, where each of its ranks pends in a call that another one of them has not made.

The last two only where the newest call was old enough when the files were written: of a job at work
the dumps look the same. Of all else there is nothing to prove, and only innocent ranks must not be
accused; but where the truth lies in messages, or in a group that never formed, those who do not
come may be suspected, if it is said that the record does not have the one or the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from distdebug.diagnosis.findings import Finding
from distdebug.foreign import dump_files, judging, plain_pickle
from distdebug.foreign.trace import traced

from .fixture_table import Expected

MISMATCHES = {"op_mismatch": "op", "dtype_mismatch": "dtypes", "shape_mismatch": "elements"}
ABSENCES = frozenset(
    ["early_exit", "forked", "invalid_argument", "missing_rank", "rank_died", "rank_exception"]
)
ELSEWHERE = {
    "deadlock": "messages",
    "p2p_mismatch": "messages",
    "unmatched_p2p": "messages",
    "group_mismatch": "unformed_groups",
}
"""Where the truth of an outcome lies that is not on record, by the word of `not_in_record`."""
AT_WORK_S = 5.0
OWN_SIZE = ("gather", "scatter", "alltoall", "all_to_all", "broadcast_object")
"""In such ops ranks may have other sizes."""
DEFAULT = "0"


@dataclass(frozen=True)
class _Call:
    op: str
    elements: int
    dtypes: tuple[str, ...]
    pends: bool
    made_ns: int


_Calls = Mapping[tuple[str, int], Mapping[int, _Call]]
"""By group and sequence number the call of each rank."""


def provable(one: Expected, folder: Path) -> bool:
    """Whether the dumps there hold what proves the truth of this fixture."""
    calls = _calls(folder)
    guilty, size = frozenset(one["culprits"] or ()), one["nproc"]
    outcome = one["outcome"]
    if outcome in MISMATCHES:
        return _differ(calls, guilty, MISMATCHES[outcome], size)
    if _age_s(calls, folder) < AT_WORK_S:
        return False
    if outcome in ABSENCES:
        dumps = [int(path.name.removeprefix("rank_")) for path in folder.glob("rank_*")]
        return _absent(calls, guilty, size, dumps)
    if outcome == "deadlock":
        return _locked(calls, guilty, size)
    return False


def _calls(folder: Path) -> _Calls:
    found: dict[tuple[str, int], dict[int, _Call]] = {}
    for path in folder.glob("rank_*"):
        rank = int(path.name.removeprefix("rank_"))
        dump: Any = plain_pickle.loads(path.read_bytes())
        for row in dump["entries"]:
            at = (row["process_group"][0], row["collective_seq_id"])
            found.setdefault(at, {})[rank] = _Call(
                row["profiling_name"],
                sum(map(prod, row["input_sizes"] or row["output_sizes"])),
                tuple(row["input_dtypes"] or row["output_dtypes"]),
                not row["retired"],
                row["time_created_ns"],
            )
    return found


def _age_s(calls: _Calls, folder: Path) -> float:
    """How old the newest call was when the last file was written."""
    written_s = max((path.stat().st_mtime for path in folder.glob("rank_*")), default=0.0)
    made = (call.made_ns for made in calls.values() for call in made.values())
    return written_s - max(made, default=0) / 1e9


def _differ(calls: _Calls, guilty: frozenset[int], what: str, size: int) -> bool:
    """Whether a call at which ranks differ in this tells that some of those at fault are wrong, and
    nobody else: they are outside the largest set that agrees, or all where there is none. Ranks
    that have no call there on record must not be able to change that."""
    for (group, _), made in calls.items():
        ops = {call.op for call in made.values()}
        if what != "op" and (len(ops) > 1 or any(word in min(ops) for word in OWN_SIZE)):
            continue
        sets: dict[object, set[int]] = {}
        for rank, call in made.items():
            sets.setdefault(getattr(call, what), set()).add(rank)
        if len(sets) < 2:
            continue
        first, second, *_ = sorted(sets.values(), key=len, reverse=True)
        lead = len(first) - len(second)
        absent = len(_members(calls, group, size) - made.keys())
        wrong = made.keys() - first if lead else made.keys()
        if wrong <= guilty and not (absent and lead <= absent):
            return True
    return False


def _absent(calls: _Calls, guilty: frozenset[int], size: int, dumps: Collection[int]) -> bool:
    """Whether others have made a call that all at fault are known to owe; where one of them has
    left no dump, whether somebody still waits in it."""
    return any(
        guilty.isdisjoint(made)
        and guilty <= _members(calls, group, size)
        and (guilty <= set(dumps) or any(call.pends for call in made.values()))
        for (group, _), made in calls.items()
    )


def _locked(calls: _Calls, guilty: frozenset[int], size: int) -> bool:
    """Whether each of these pends in a call that another one is known to owe."""
    return bool(guilty) and all(
        any(
            rank in made
            and made[rank].pends
            and guilty & (_members(calls, group, size) - made.keys())
            for (group, _), made in calls.items()
        )
        for rank in guilty
    )


def _members(calls: _Calls, group: str, size: int) -> set[int]:
    """Who is known to be in the group. Of two ranks that is both where one of them waits in it."""
    made = [one for (name, _), one in calls.items() if name == group]
    waits = any(call.pends for one in made for call in one.values())
    if group == DEFAULT or (size == 2 and waits):
        return set(range(size))
    return {rank for one in made for rank in one}


# -- what is said of it ---------------------------------------------------------------------------


def findings(folder: Path) -> Sequence[Finding]:
    """What the diagnosis has of the dumps there."""
    if not any(folder.iterdir()):
        return ()
    (job,) = dump_files.load(folder).jobs
    return judging.judge(traced(job.dumps), job.age_s)


def fault(one: Expected, can: bool, found: Sequence[Finding]) -> str:
    """What is wrong with these findings on a fixture, "" where nothing is. `can`: its dumps can
    prove its truth."""
    guilty = set(one["culprits"] or ())
    named = {rank for finding in found for rank in finding.culprits}
    if one["outcome"] == "ok" or one["severity"] == "warning":
        return "a correct program is accused" if found else ""
    if not can:
        if any(finding.proven for finding in found) and not guilty <= named:
            return "what cannot be proven is called proven"
        if named and guilty.isdisjoint(named) and not admitted(one, found):
            return "only innocent ranks are accused"
        return ""
    if not found:
        return "nothing is said"
    kind = "missing_rank" if one["outcome"] in ABSENCES else one["outcome"]
    if len(found) > 1 or found[0].kind != kind:
        return f"is no {kind} alone"
    if named != guilty:
        return "other ranks are accused"
    if found[0].proven != (kind in MISMATCHES):
        return "proven and suspected are mistaken for each other"
    return "" if _shows_the_line(one, found[0]) else "its line is not shown"


def admitted(one: Expected, found: Sequence[Finding]) -> bool:
    """Whether only innocent ranks are suspected, and it is said what the record does not have."""
    elsewhere = ELSEWHERE.get(one["outcome"], "")
    innocent = {rank for each in found for rank in each.culprits}.isdisjoint(one["culprits"] or ())
    said = all(elsewhere in each.not_in_record and not each.proven for each in found)
    return bool(found) and innocent and said


def _shows_the_line(one: Expected, finding: Finding) -> bool:
    """That of the call that is wrong, or where the others wait: where a rank that has made no call
    stands is not on record."""
    of_victims = finding.kind == "missing_rank"
    ranks = finding.victims if of_victims else finding.culprits
    shown = [finding.ranks[rank].location for rank in ranks if rank in finding.ranks]
    lines = {location.line for location in shown if location}
    if of_victims and one["line_of"] != "victim":
        return bool(lines)
    return bool(lines & {one["line"], *one["or_lines"]})
