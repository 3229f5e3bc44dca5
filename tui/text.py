"""Lines of styled text: what screens are made of before there is any screen.

A line is a tuple of pieces, a piece is (text, tone). Tones are words such as "bad"; the theme says
what they look like. Text from a rank passes `safe` on its way in; nothing is ever read as markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from rich.cells import cell_len, set_cell_size

from ..record.safe_text import clean

Piece = tuple[str, str]
Line = tuple[Piece, ...]

EMPTY: Line = ()
TONES = ("", "dim", "place", "title", "good", "busy", "warn", "bad", "mark", "key", "cursor")
"""Every tone there is; "" is plain text, "place" a source line (see `within`)."""
LEAST_PLACE = 12
LEAST_NAME = 8


def safe(value: object, most: int = 400) -> str:
    """Text from outside, on one line, without anything that a terminal would act on."""
    return clean(str(value).replace("\t", " "), most)


def line(*parts: str | Piece) -> Line:
    """A line of pieces; a bare string has no tone."""
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def add_piece(pieces: list[Piece], text: str, tone: str) -> None:
    """Adds to the last piece where that has the same tone, else a new one."""
    if pieces and pieces[-1][1] == tone:
        pieces[-1] = (pieces[-1][0] + text, tone)
    else:
        pieces.append((text, tone))


def plain(row: Line) -> str:
    """The text of a line."""
    return "".join(text for text, _ in row)


def width_of(row: Line) -> int:
    """Returns how many cells a line takes."""
    return sum(cell_len(text) for text, _ in row)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells; what does not fit ends in an ellipsis."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)


def apart(names: Sequence[str], width: int) -> list[str]:
    """The names, in at most `width` (12 or more) cells each and no two of them alike: a longer one
    loses its middle, since what tells names apart stands at an end; equal ones are numbered."""
    short = [_ends(name, width) for name in names]
    many = Counter(short)
    taken = set(short)
    numbers: dict[str, Iterator[int]] = {cut: count(1) for cut in many}
    told = []
    for name, cut in zip(names, short, strict=True):
        if many[cut] > 1:
            ends = (f" ({number})" for number in numbers[cut])
            options = (_ends(name, width - len(end)) + end for end in ends)
            told.append(next(one for one in options if one not in taken))
            taken.add(told[-1])
        else:
            told.append(cut)
    return told


def _ends(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    tail = text
    while cell_len(tail) > width // 2 - 1:
        tail = tail[1:]
    return f"{set_cell_size(text, width - cell_len(tail) - 1)}…{tail}"


def place(site: str, width: int) -> str:
    """`train.py:88 in step` in at most `width` cells: the function goes first, then the start of
    the file's name; the line number never."""
    if cell_len(site) > width:
        site = site.partition(" in ")[0]
    size = cell_len(site)
    if size <= width or width <= 0:
        return site
    cut = site
    while cell_len(cut) > width - 1:
        cut = cut[1:]
    return f"…{cut}"


def called_at(call: str, site: str, width: int) -> str:
    """A call and its line after two blanks each, in at most `width` cells: the call is cut first,
    since the line number says more."""
    parts = [f"  {call}" if call else "", f"  {site}" if site else ""]
    if sum(map(cell_len, parts)) > width and site:
        short = place(site, max(LEAST_PLACE, width - cell_len(parts[0]) - 2))
        parts = [fit(parts[0], max(0, width - cell_len(short) - 2)).rstrip(), f"  {short}"]
    text = "".join(parts)
    return text if cell_len(text) <= width else fit(text, width)


def clip(row: Line, width: int) -> Line:
    """The line, cut to `width` cells."""
    if width_of(row) <= width:
        return row
    found: list[Piece] = []
    left = width
    for text, tone in row:
        size = cell_len(text)
        if size > left:
            found.append((fit(text, left), tone))
            break
        found.append((text, tone))
        left -= size
    return tuple(found)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """The text in lines of at most `width` cells, broken at blanks where possible."""
    body = text.lstrip(" ")
    lead = text[: len(text) - len(body)]
    if lead and len(lead) < width // 2:
        return [lead + row for row in wrap(body, width - len(lead), indent)]
    rows: list[str] = []
    current = ""
    for word in text.split(" "):
        while cell_len(word) > width - len(indent):
            if current.strip():
                rows.append(current)
                current = indent
            head = set_cell_size(word, max(1, width - cell_len(current)))
            if not word.startswith(head):  # half a letter was left over, and filled with a blank
                head = head[:-1] or word[0]
            rows.append(current + head)
            current, word = indent, word[len(head) :]
        joined = f"{current} {word}" if current.strip() else current + word
        if cell_len(joined) > width:
            rows.append(current)
            joined = indent + word
        current = joined
    return [*rows, current] if current.strip() or not rows else rows


def fold(row: Line, width: int, indent: str = "    ") -> list[Line]:
    """The line in lines of at most `width` cells, as `wrap` breaks them; each piece keeps its
    tone."""
    source = [(letter, tone) for text, tone in row for letter in text]
    found: list[Line] = []
    at = 0
    for text in wrap(plain(row), width, indent):
        body = text.lstrip(" ")
        if found:  # the blanks before it are new; those where it was broken are gone
            while at < len(source) and source[at][0] == " ":
                at += 1
            pieces: list[Piece] = [(text[: len(text) - len(body)], "")]
        else:
            body, pieces = text, []
        for letter, tone in source[at : at + len(body)]:
            add_piece(pieces, letter, tone)
        at += len(body)
        found.append(tuple(pieces))
    return found


def within(row: Line, width: int) -> list[Line]:
    """The line in lines of at most `width` cells: a `place` at its end is made shorter if that
    will do, else the line is wrapped. Nothing else of it is lost."""
    if width_of(row) <= width:
        return [row]
    *head, (site, tone) = row
    room = width - width_of(tuple(head))
    short = place(site, max(LEAST_PLACE, room))
    if tone == "place" and cell_len(short) <= room:
        return [(*head, (short, tone))]
    return fold(row, width)


def standing(row: Line, width: int) -> list[Line]:
    """The same for `main (train.py:88)` behind an indent: the function's name is cut first, what
    stands behind it is not."""
    more = width_of(row) - width
    if more <= 0:
        return [row]
    if len(row) < 2:
        return fold(row, width)
    indent, (frame, tone), *rest = row
    name, opening, place_text = frame.rpartition(" (")
    room = max(LEAST_NAME, cell_len(name) - more)
    if opening and room < cell_len(name):
        frame = fit(name, room) + opening + place_text
    return fold((indent, (frame, tone), *rest), width)


def duration(time_ns: int) -> str:
    """`850 ms`, `4.2 s`, `3m07`, `2h05`, `3d04h`: always at most 6 characters."""
    value_s = max(0, time_ns) / 1e9
    if value_s < 0.0995:
        return f"{value_s * 1e3:.1f} ms" if value_s < 0.00995 else f"{value_s * 1e3:.0f} ms"
    if value_s < 0.9995:
        return f"{value_s * 1e3:.0f} ms"
    if value_s < 99.95:
        return f"{value_s:.1f} s"
    minutes, rest_s = divmod(round(value_s), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}"
    return f"{hours // 24}d{hours % 24:02}h" if hours < 2400 else f"{hours // 24}d"


def size(amount_bytes: float) -> str:
    """`512K`, `1.5G`: at most 5 characters."""
    value = float(amount_bytes)
    for unit in ("B", "K", "M", "G"):
        if value < 1000:
            return f"{value:.0f}{unit}" if value >= 9.95 or unit == "B" else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"
