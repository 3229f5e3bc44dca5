"""The calls of all ranks around one sequence number, side by side for a reader: ranks that made the
same calls from the same lines are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..record.snapshot import Call, GroupKey
from ..record.wording import at_site, call_text, group_name, ranges
from .traffic import UNKNOWN, RankCalls


def lines(ranks: Sequence[RankCalls], seq: int, around: int, group: str = "") -> Iterator[str]:
    """Yields a paragraph for each set of ranks that agree: the calls in program order, of every
    group, from `around` before collective `seq` to `around` behind it.

    `group` is the name or the description of the one that is meant ("": all that have come so far).
    A rank that has not made that call is shown with its last calls. Raises LookupError where no
    rank has such a group.
    """
    shown: dict[tuple[str, ...], list[int]] = {}
    known: set[str] = set()
    for one in ranks:
        names = {key: group_name(key[0], of.desc) for key, of in one.groups.items()}
        wanted = {key for key, name in names.items() if group in ("", key[0], name)}
        known |= set(names.values())
        if wanted or not group:
            rows = tuple(_rows(one, names, wanted, seq, around))
            shown.setdefault(rows, []).append(one.rank)
    if not shown:
        raise LookupError(
            f"no rank has a group {group!r}, only {', '.join(sorted(known)) or 'none'}"
        )
    for rows, those in shown.items():
        yield ranges(those)
        yield from rows


def _rows(
    one: RankCalls, names: dict[GroupKey, str], wanted: set[GroupKey], seq: int, around: int
) -> Iterator[str]:
    def is_meant(call: Call) -> bool:
        return call.group in wanted and call.seq == seq and call.signature.peer is None

    at = [index for index, call in enumerate(one.calls) if is_meant(call)]
    if not at:
        lost = f", or it is among the first {one.lost:,}, which are no longer on record"
        yield f"  did not make collective #{seq}{lost if one.lost else ''}; its last calls:"
        at = [len(one.calls)]
    near = {index for here in at for index in range(here - around, here + around + 1)}
    for index, call in enumerate(one.calls):
        if index in near:
            mark = ">" if is_meant(call) else " "
            number = f"#{call.seq}" if call.signature.peer is None else f"message #{call.seq}"
            name = names.get(call.group, UNKNOWN)
            state = call.state.name.lower()
            yield f'{mark} {number} of "{name}"  {call_text(call)}{at_site(call.site)}  {state}'
