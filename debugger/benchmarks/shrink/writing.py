"""A small program as Python source: plain torch, for torchrun.

What all ranks do first and last stands once, and what they do between that in branches, by rank;
equal steps are a loop. Where the lines of calls count, ranks go through one loop over letters
instead, so that each call has one line, whoever makes it.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...diagnosis.facts.world import DEFAULT_GROUP
from ...plan.program import Created, Destroyed, Ended, Made, Program, Waited
from ...record.ops import Operand, Pattern, op_of
from ...record.signature import ANY_SOURCE, REDUCE_OPS, Tensor
from ...record.snapshot import Call, CallSite, GroupKey
from ...record.wording import printable, signal_name
from .recorded import BACKEND
from .smaller import Programs, group_of, sides

FIRST = '"""Made by distdebug shrink'
MOST_LINES = 60
_FOREVER = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "lock": "threading.Semaphore(0).acquire()",
    "gil_held": "ctypes.PyDLL(None).sleep(3600)",
}
"""What a rank does, by the cause of its absence, that is in no call and does not end."""
_MODULES = ("ctypes", "os", "signal", "threading", "time")
_INDENT = "    "
_LONGEST = 96


class NotWritten(Exception):
    """The program has a call that plain torch on gloo does not make."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A line of code. `place`: which of the recorded lines it stands for, where that counts. Two
    are equal that do the same there, whatever line, `site`, they are shown with."""

    text: str
    place: int = 0
    site: str = field(default="", compare=False)

    def __str__(self) -> str:
        line = f"{self.text}  # {self.site}"
        return line if self.site and len(line) < _LONGEST else self.text


def written(programs: Programs, cause: str, about: str, *, in_one_loop: bool) -> str:
    """Returns the source. `cause`: of a rank that is missing; `about`: what follows `FIRST`.
    Raises NotWritten, also where that takes more lines than a report should have."""
    groups = {key: group for one in programs.values() for key, group in one.groups.items()}
    events = [event for one in programs.values() for event in one.events]
    worlds = {key for key, group in groups.items() if group.desc == DEFAULT_GROUP}
    used = dict.fromkeys(key for key in map(group_of, events) if key is not None)
    if len(worlds.intersection(used)) > 1:
        raise NotWritten("it makes the default group anew")
    others = [key for key in used if key not in worlds]
    names: dict[GroupKey, str] = dict.fromkeys(worlds, "")  # of their variables
    names.update((key, f"group_{at}") for at, key in enumerate(others, 1))
    rows = {rank: list(_statements(program, names, cause)) for rank, program in programs.items()}
    made = {event.creation.group for event in events if isinstance(event, Created)}
    body = [
        f"{names[key]} = dist.new_group({list(groups[key].ranks)})"
        for key in others
        if key not in made
    ]
    body += _letters(rows) if in_one_loop else _branches(rows)
    text = "\n".join(body)
    imports = [f"import {name}" for name in _MODULES if re.search(rf"\b{name}\.(?!py:)", text)]
    lines = [
        f'{FIRST} {about}"""',
        "",
        *imports,
        *([""] if imports else []),
        "import torch",
        "import torch.distributed as dist",
        "",
        f'dist.init_process_group("{BACKEND}")',
        "rank = dist.get_rank()",
        *body,
    ]
    if len(lines) > MOST_LINES:
        raise NotWritten(f"it takes {len(lines)} lines, which are more than {MOST_LINES}")
    return "\n".join(lines) + "\n"


def _statements(program: Program, names: Mapping[GroupKey, str], cause: str) -> Iterator[Statement]:
    """The statements of one rank."""
    works: dict[int, str] = {}
    for event in program.events:
        match event:
            case Made(call):
                text = _call(call, names[call.group], program.rank)
                if call.is_async:
                    free = {f"work_{at + 1}" for at in range(len(works) + 1)}
                    works[call.number] = min(free.difference(works.values()))
                    text = f"{works[call.number]} = {text}"
                place = call.place.sites[0].line if call.place is not None else 0
                yield Statement(text, place, _shown(call.site))
            case Waited(number, site):
                yield Statement(f"{works.pop(number)}.wait()", 0, _shown(site))
            case Created(creation):
                text = f"{names[creation.group]} = dist.new_group({list(creation.ranks)})"
                yield Statement(text, 0, _shown(creation.site))
            case Destroyed(group, site):
                text = f"dist.destroy_process_group({names.get(group, '')})"
                yield Statement(text, 0, _shown(site))
            case Ended() if program.notes:
                ((_, note),) = program.notes
                yield Statement(f"raise RuntimeError({note.message!r})", 0, _shown(note.site))
            case Ended(signal=int(number)):
                name = signal_name(number)  # "signal 63" where it has none
                sent = f"signal.{name}" if name.isidentifier() else number
                yield Statement(f"os.kill(os.getpid(), {sent})")
            case Ended(code) if code:
                yield Statement(f"os._exit({code})")
    if not (program.events and isinstance(program.events[-1], Ended)):
        yield Statement(_FOREVER.get(cause, "time.sleep(3600)"))


def _call(call: Call, group: str, rank: int) -> str:
    """Returns how the rank makes the call, in the group of this variable."""
    signature, row = call.signature, op_of(call.signature.op)
    if (row.coalesced and row.outputs is not Operand.IN_PLACE) or row.pattern is Pattern.OTHER:
        raise NotWritten(f"torch has no function of its own for {printable(signature.op)}")
    if signature.reduce_op not in ("", *REDUCE_OPS):
        raise NotWritten(f"it has a reduce op {printable(signature.reduce_op)}")
    splits = {*signature.sends, *signature.receives}
    given, taken = sides(signature)
    arguments = [
        (operand, _tensors(Operand.LIST if row.coalesced else operand, tensors, bool(splits)))
        for operand, tensors in ((row.outputs, taken), (row.inputs, given))
        if operand not in (Operand.NONE, Operand.IN_PLACE)
    ]
    if row.pattern is Pattern.GATHER:  # the one whose input comes first
        arguments.reverse()
    if row.root and signature.root != rank:  # the list is the root's
        arguments = [one for one in arguments if one[0] is Operand.ONE]
    words = [text for _, text in arguments]
    if len(splits) > 1:
        words += [str(list(signature.receives)), str(list(signature.sends))]
    if row.root:
        words.append(f"{row.root}={signature.root}")
    if signature.peer not in (None, ANY_SOURCE):
        words.append(f"{'dst' if row.outputs is Operand.NONE else 'src'}={signature.peer}")
    if row.reduces and signature.reduce_op != "sum":
        words.append(f"op=dist.ReduceOp.{signature.reduce_op.upper()}")
    if group:
        words.append(f"group={group}")
    if signature.tag:
        words.append(f"tag={signature.tag}")
    function = signature.op
    if call.is_async and row.pattern is Pattern.MESSAGE:
        function = row.functions[0]
    elif call.is_async:
        words.append("async_op=True")
    return f"dist.{function}({', '.join(words)})"


def _tensors(operand: Operand, tensors: Sequence[Tensor], is_flat: bool) -> str:
    made = []
    for dtype, shape in tensors:
        layout, _, name = dtype.rpartition(" ")
        if layout not in ("", "sparse") or not name.isidentifier():  # a record may be anybody's
            raise NotWritten(f"it has a tensor of {printable(dtype)}")
        sizes = prod(shape) if is_flat else shape[0] if len(shape) == 1 else tuple(shape)
        typed = "" if name == "float32" else f", dtype=torch.{name}"
        made.append(f"torch.zeros({sizes}{typed}){'.to_sparse()' if layout else ''}")
    if operand is not Operand.LIST:
        return made[0] if made else "None"
    if len(made) > 1 and len(set(made)) == 1:
        return f"[{made[0]} for _ in range({len(made)})]"
    return f"[{', '.join(made)}]"


def _shown(site: CallSite | None) -> str:
    if site is None:
        return ""
    return printable(f"{site.file.replace(chr(92), '/').rpartition('/')[2]}:{site.line}", 60)


def _branches(rows: Mapping[int, Sequence[Statement]]) -> Iterator[str]:
    """The lines of a program in which each rank comes to its own statements."""
    some, *_ = rows.values()
    first = _in_common(rows.values())
    last = _in_common(row[first:][::-1] for row in rows.values())
    between: dict[tuple[Statement, ...], list[int]] = {}
    for rank, row in rows.items():
        between.setdefault(tuple(row[first : len(row) - last]), []).append(rank)
    yield from _looped(some[:first])
    word = "if"
    for own, ranks in between.items():
        if own:
            which = f"== {ranks[0]}" if len(ranks) == 1 else f"in {tuple(ranks)}"
            yield f"{word} rank {which}:"
            yield from (_INDENT + line for line in _looped(own))
            word = "elif"
    yield from _looped(some[len(some) - last :])


def _in_common(rows: Iterable[Sequence[Statement]]) -> int:
    """The number of statements with which all begin."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len({*column}) == 1, columns))


def _looped(row: Sequence[Statement]) -> Iterator[str]:
    """The lines of these statements, with equal steps as a loop."""
    at = 0
    while at < len(row):
        length, times = _step(row, at)
        if times > 1:
            yield f"for _ in range({times}):"
        for one in row[at : at + length]:
            yield f"{_INDENT if times > 1 else ''}{one}"
        at += length * times


def _step(row: Sequence[Statement], at: int) -> tuple[int, int]:
    """Returns how many statements make a step here, and how often it comes, to save most lines."""
    best, saved = (1, 1), 0
    for length in range(1, min((len(row) - at) // 2, MOST_LINES) + 1):
        step, times = row[at : at + length], 1
        while row[at + times * length : at + (times + 1) * length] == step:
            times += 1
        if length * (times - 1) - 1 > saved:
            best, saved = (length, times), length * (times - 1) - 1
    return best


def _letters(rows: Mapping[int, Sequence[Statement]]) -> Iterator[str]:
    """The lines of a program in which all ranks make a call from the line that is its own."""
    known = dict.fromkeys(itertools.chain(*rows.values()))
    if len(known) > len(string.ascii_letters):
        raise NotWritten("its calls come from too many lines")
    letters = dict(zip(known, string.ascii_letters, strict=False))
    yield "calls = {"
    for rank, row in rows.items():
        yield f'{_INDENT}{rank}: "{"".join(letters[one] for one in row)}",'
    yield "}"
    yield "for call in calls[rank]:"
    for one, letter in letters.items():
        yield f'{_INDENT}{"el" if letter != "a" else ""}if call == "{letter}":'
        yield f"{2 * _INDENT}{one}"
