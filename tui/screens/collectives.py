"""The last collectives of a group: who has entered and left each, and where the calls differ."""

from __future__ import annotations

from os.path import commonprefix
from typing import ClassVar

from ...record.layout import CallState
from ...record.snapshot import Call, GroupKey
from ...record.wording import call_text, ranks_text, site_text
from ..picture import Focus, Matrix, Picture, Stage
from ..text import Line, Piece, clip, duration, fit, line, plain, safe, width_of, within, wrap
from .base import Body, Key, View, moved

LABEL = 11
CELL = 2
SYMBOLS = {
    "left": ("■", "good", "the call is complete on this rank"),
    "entered": ("○", "busy", "the rank is in the call, or it goes on in the background"),
    "failed": ("!", "bad", "the call raised on this rank"),
    "differs": ("≠", "mark", "the rank's call is not that of most"),
    "to come": ("·", "dim", "the rank has not entered it"),
    "forgotten": ("?", "dim", "older than the 4,096 calls that a rank keeps"),
}


def symbol(call: Call | None, odd: bool, came: bool) -> str:
    """Returns the symbol of a cell. `came`: the rank has made that call, though it may be
    forgotten."""
    if call is None:
        return "forgotten" if came else "to come"
    if odd:
        return "differs"
    if call.state is CallState.FAILED:
        return "failed"
    return "left" if call.state is CallState.COMPLETED else "entered"


def window(matrix: Matrix, column: int | None, width: int) -> range:
    """The columns in sight: the last ones, or those around the cursor's."""
    count = min(len(matrix.seqs), max(1, (width - LABEL) // CELL))
    last = len(matrix.seqs)
    if column is not None and column < last - count:
        start = max(0, column - count // 2)
        return range(start, start + count)
    return range(last - count, last)


def head(matrix: Matrix, columns: range, width: int) -> Line:
    """The sequence numbers, one for every fourth column."""
    text = " " * LABEL
    for position, column in enumerate(columns):
        if column % 4 == 0 or position == 0:
            at = LABEL + position * CELL
            label = f"#{matrix.seqs[column]} "
            if at >= len(text) and at + len(label) <= width:
                text += " " * (at - len(text)) + label
    return ((text, "dim"),)


def parting(matrix: Matrix, columns: range, width: int) -> list[Line]:
    """The call at which lines part, below its number if it is in sight."""
    if matrix.parted is None:
        return []
    seq, text = matrix.parted
    shown = [matrix.seqs[column] for column in columns]
    at, sign = (shown.index(seq) * CELL, "▼") if seq in shown else (0, "◂")
    return [clip(line((" " * (LABEL + at), ""), (f"{sign} {text}", "mark")), width)]


def grid_lines(matrix: Matrix, columns: range, cursor: tuple[int, int] | None) -> list[Line]:
    """A line a rank; `cursor` is (row, column)."""
    found = []
    for row, rank in enumerate(matrix.ranks):
        pieces: list[Piece] = [(fit(f"rank {rank}", LABEL), "")]
        for column in columns:
            seq = matrix.seqs[column]
            call = matrix.calls.get((rank, seq))
            odd = rank in matrix.odd.get(seq, ())
            name = symbol(call, odd, matrix.issued.get(rank, 0) > seq)
            text, tone, _ = SYMBOLS[name]
            pieces.append((text, "cursor" if (row, column) == cursor else tone))
            pieces.append((" " * (CELL - 1), ""))
        found.append(tuple(pieces))
    return found


def legend() -> Line:
    """Returns a line with the meanings of the symbols."""
    pieces: list[Piece] = []
    for name, (text, tone, _) in SYMBOLS.items():
        pieces += [(text, tone), (f" {name}  ", "dim")]
    return tuple(pieces)


class CollectivesView(View):
    name = "collectives"
    key = "c"
    title = "Collectives"
    explained = (
        "A column a collective of one group, a row a rank: who has left it, who is inside, who is "
        "still to come, whose call differs, and where lines part. Below, the calls under the "
        "cursor as a diff."
    )
    keys: ClassVar = (
        Key("left_square_bracket", "[", "group", "the previous group"),
        Key("right_square_bracket", "]", "group", "the next group"),
    )

    filters = False

    _group: GroupKey | None = None
    _seq: int | None = None
    """The column of the cursor; None: the newest."""

    def open(self, group: GroupKey) -> None:
        """Show that group from now on, where it goes wrong or at its newest collective."""
        self._group, self._seq = group, None

    def focus(self) -> Focus:
        return Focus(self.name, self.chosen.rank, self._group)

    def body(self, picture: Picture, width: int, height: int) -> Body:
        matrix = picture.matrix
        if matrix is None or not matrix.seqs:
            live, what = picture.stage is Stage.LIVE, "reading ..."
            if picture.focus.view == self.name and not picture.groups:
                what = "no group has been made" + (" yet" if live else "")
            elif picture.focus.view == self.name:
                what = "no collective yet" if live else "no collective was called"
                what += " in this group; sends and receives are on the screens Rank and Waits"
            rows = [line((row, "dim")) for row in wrap(what, max(20, width))]
            return Body(top=self._tabs(picture, width), lines=rows)
        column = self._column(matrix)
        columns = window(matrix, column if self._seq is not None else None, width)
        self.chosen.settle(picture)
        row = self._row(matrix)
        shown = len(matrix.ranks)
        over = picture.stage in (Stage.ENDED, Stage.KILLED)
        below = detail_lines(matrix, matrix.seqs[column], matrix.ranks[row], width, over)
        if shown < matrix.size:
            more = f"{shown} of {matrix.size} ranks: those that stand out, and the lowest"
            below.append(line((more, "dim")))
        return Body(
            top=[
                *self._tabs(picture, width),
                clip(legend(), width),
                head(matrix, columns, width),
                *parting(matrix, columns, width),
            ],
            lines=grid_lines(matrix, columns, (row, column)),
            below=below[: max(4, height // 2)],
            wanted=row,
        )

    def _tabs(self, picture: Picture, width: int) -> list[Line]:
        shown = picture.matrix.group if picture.matrix else None
        pieces = [
            (f" {name} ", "cursor" if key == shown else "dim") for key, name in picture.groups
        ]
        at = next((i for i, (key, _) in enumerate(picture.groups) if key == shown), 0)
        return [clip((("groups:", "dim"), *pieces[max(0, at - 3) :]), width)]

    def _column(self, matrix: Matrix) -> int:
        if self._seq is None:
            # The first collective that is wrong is where to look, else the newest.
            wrong = matrix.first_wrong
            return matrix.seqs.index(wrong) if wrong is not None else len(matrix.seqs) - 1
        return max(0, min(len(matrix.seqs) - 1, self._seq - matrix.seqs[0]))

    def _row(self, matrix: Matrix) -> int:
        if self.chosen.rank is None or self.chosen.rank not in matrix.ranks:
            return 0
        return matrix.ranks.index(self.chosen.rank)

    def press(self, key: str, picture: Picture, page: int) -> bool:
        if key in ("left_square_bracket", "right_square_bracket"):
            keys = [group for group, _ in picture.groups]
            if keys:
                shown = self._group or (picture.matrix.group if picture.matrix else None)
                at = keys.index(shown) if shown in keys else 0
                step = 1 if key.startswith("right") else -1
                self._group = keys[(at + step) % len(keys)]
                self._seq = None
            return True
        matrix = picture.matrix
        if matrix is None or not matrix.seqs:
            return False
        if key in ("left", "h", "right", "l"):
            step = -1 if key in ("left", "h") else 1
            at = self._column(matrix) + step
            at = max(0, min(len(matrix.seqs) - 1, at))
            newest = at == len(matrix.seqs) - 1 and matrix.first_wrong is None
            self._seq = None if newest else matrix.seqs[at]
            return True
        to = moved(self._row(matrix), key, len(matrix.ranks), page)
        if to is not None:
            self.chosen.rank = matrix.ranks[to]
        return to is not None

    def pointed(self, column: int, row: int, picture: Picture) -> None:
        matrix = picture.matrix
        if matrix is None or row >= len(matrix.ranks):
            return
        self.chosen.rank = matrix.ranks[row]
        shown = window(matrix, self._column(matrix) if self._seq is not None else None, self.width)
        at = (column - LABEL) // CELL
        if 0 <= at < len(shown):
            self._seq = matrix.seqs[shown[at]]


def detail_lines(matrix: Matrix, seq: int, rank: int, width: int, over: bool = False) -> list[Line]:
    """Returns the lines of one collective: the calls of all ranks as a diff against those of most,
    and when each came."""
    calls = {
        number: matrix.calls[number, seq]
        for number in matrix.ranks
        if (number, seq) in matrix.calls
    }
    odd = matrix.odd.get(seq, frozenset())
    absent = [number for number in matrix.ranks if matrix.issued.get(number, 0) <= seq]
    head = f'#{seq} of group "{matrix.name}"'
    skew = ""
    if len(calls) > 1:
        first_ns = min(call.issued_ns for call in calls.values())
        last = max(calls, key=lambda number: calls[number].issued_ns)
        skew = f"arrival skew {duration(calls[last].issued_ns - first_ns)}, rank {last} last"
    when = line(f"  {skew}")
    call = calls.get(rank)
    if call is not None and len(calls) > 1:
        after = call.issued_ns - min(one.issued_ns for one in calls.values())
        when += line((f", this rank {duration(after)} after the first", "dim"))
    lines = [line((head, "title"), *when)]
    if width_of(lines[0]) > width and plain(when).strip():
        lines = [line((head, "title")), when]
    parties: dict[tuple[str, str], list[int]] = {}
    for number, call in calls.items():
        site = safe(site_text(call.site)) if call.site else "line unknown"
        parties.setdefault((safe(call_text(call)), site), []).append(number)
    usual = next((p for p, who in parties.items() if not odd & set(who)), next(iter(parties), None))
    for party, who in sorted(
        parties.items(), key=lambda item: (bool(odd & set(item[1])), -len(item[1]))
    ):
        lines += _party(party, who, usual, bool(odd & set(who)), rank in who, width)
    if absent:
        word = "never came" if over else "still to come"
        lines.append(line(("· ", "dim"), (f"{ranks_text(absent)} {word}", "warn")))
    return lines


def _party(
    party: tuple[str, str],
    ranks: list[int],
    usual: tuple[str, str] | None,
    odd: bool,
    here: bool,
    width: int,
) -> list[Line]:
    call, site = party
    sign, tone = ("≠ ", "mark") if odd else ("  ", "")
    who = f"{ranks_text(ranks)}{' ◂' if here else ''}"
    said = line((sign, tone), (f"{who:<18} ", "title"), *_diff(call, usual, odd), "  ")
    return within((*said, (site, "place")), width)


def _diff(call: str, usual: tuple[str, str] | None, odd: bool) -> list[tuple[str, str]]:
    """The call, with what is not as in the usual one in contrast."""
    if not odd or usual is None:
        return [(call, "")]
    start = len(commonprefix([call, usual[0]]))  # noqa: RUF071 - by letters
    ends = [call[start:][::-1], usual[0][start:][::-1]]
    end = len(commonprefix(ends))  # noqa: RUF071
    changed = call[start : len(call) - end]
    return [(call[:start], ""), (changed, "mark"), (call[len(call) - end :] if end else "", "")]
