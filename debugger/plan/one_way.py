"""Findings that hang on what a plan has left undecided: by values that each rank has of its own,
and that no plan knows, ranks may go different ways.

Such a finding is no error: the values of a run may have all ranks go one way. So the ranks are
planned again, all on the way of whoever comes first to each decision. What is found then, too, is
there whatever is decided; the rest is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..diagnosis.findings import Finding
from ..record.wording import site_text
from .judgement import Judgement, UndecidedPlace, judge_programs
from .model import Model
from .program import Program

Programs = Mapping[int, Program]


def confirmed(
    programs: Programs, judgement: Judgement, model: Model, again: Callable[[], Programs]
) -> tuple[Programs, Judgement]:
    """What is concluded from: these, or, where the verdict hangs on what is undecided, the programs
    of ranks that all go one way, with a warning of what was found. `again` plans those."""
    found = judgement.verdict
    if found is None or not judgement.undecided:
        return programs, judgement
    others = again()
    if not others:
        return programs, judgement
    one_way = judge_programs(others, model)
    if any(_is_the_same(found, one) for one in one_way.findings):
        return programs, judgement
    warned = [
        _hangs_on(one, judgement.undecided) if one.severity == "error" else one
        for one in judgement.findings
        if not any(_is_the_same(one, other) for other in one_way.findings)
    ]
    undecided = {(row.site, row.what): row for row in (*one_way.undecided, *judgement.undecided)}
    findings = [*one_way.findings, *warned]
    return others, replace(one_way, findings=findings, undecided=list(undecided.values()))


def _is_the_same(found: Finding, other: Finding) -> bool:
    return found.kind == other.kind and not set(found.culprits).isdisjoint(other.culprits)


def _hangs_on(finding: Finding, undecided: Sequence[UndecidedPlace]) -> Finding:
    concerned = {*finding.culprits, *finding.victims}
    places = [row for row in undecided if concerned.intersection(row.ranks)] or undecided
    where = site_text(places[0].site)
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    luck = f"only if ranks go different ways by what is undecided ({where}{more})"
    return replace(
        finding,
        severity="warning",
        proven=False,
        message=f"{luck}: {finding.message}",
        headline=f"{luck}: {finding.headline or finding.message}",
    )
