"""Lanes: what is at hand for the calls of one method of one group, so that a call looks up little.

What most lines call they call again with tensors of the same dtypes and shapes: whether a call is
like the newest one of its line, so that it need not be described again, is one question to torch's
own guard. It costs half of what it takes to read the tensors, which a key needs (see `describe`).
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch.distributed as dist

from ...record.writing.slots import CallOrigin
from . import call_site
from .describe import (
    METHODS,
    Arguments,
    Take,
    all_reduce_key,
    broadcast_key,
    gather_into_one_key,
    gather_key,
    getter,
    look_again,
    message_key,
    number_of,
    reduce_op_of,
    reduce_op_of_scatter,
    root_of_broadcast,
    scatter_from_one_key,
)
from .recorder import Facts, GroupRecord, Known, Recorder

Guard = Callable[..., bool]


@dataclass(slots=True, eq=False)
class Same:
    """The newest call of a line, and what says of tensors whether they are like its own."""

    guard: Guard
    known: Known


@dataclass(frozen=True, slots=True)
class Form:
    """The usual form of a method's arguments: which tensors determine the call, and whether such
    arguments are like those of the call with this key, by the guard of its tensors. Both raise, or
    say no, where the arguments have another form."""

    tensors: Callable[[Arguments], Sequence[Any]]
    is_like: Callable[[Guard, Facts, Arguments], bool]

    def same(
        self,
        known: Known,
        args: Arguments,
        guard_of: Callable[[Sequence[Any]], Guard | None],
    ) -> Same | None:
        """For the calls that come after this one with these arguments; None where they must be
        described each time. `guard_of`: see `torch_private.tensor_guard`."""
        try:
            guard = guard_of(self.tensors(args))
        except Exception as error:
            look_again(error)
            return None
        if guard is None or not self.is_like(guard, known.key, args):
            return None
        return Same(guard, known)


# What says no by an error: an argument too many or too few, options of another class.


def _all_reduce(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and number_of(reduce_op_of(options)) == key[3]
    except Exception as error:
        look_again(error)
    return False


def _broadcast(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and root_of_broadcast(options) == key[3]
    except Exception as error:
        look_again(error)
    return False


def _gather(guard: Guard, _key: Facts, args: Arguments) -> bool:
    try:
        [outputs], [given] = args[0], args[1]
        return outputs.__class__ is list and guard(given, *outputs)
    except Exception as error:
        look_again(error)
    return False


def _gather_into_one(guard: Guard, _key: Facts, args: Arguments) -> bool:
    try:
        return guard(args[1], args[0])
    except Exception as error:
        look_again(error)
    return False


def _scatter_from_one(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        output, given, options = args
        return guard(given, output) and number_of(reduce_op_of_scatter(options)) == key[5]
    except Exception as error:
        look_again(error)
    return False


def _message(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, peer, tag = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and peer == key[3] and tag == key[4]
    except Exception as error:
        look_again(error)
    return False


def never(_guard: Guard, _key: Facts, _args: Arguments) -> bool:
    """For a method whose calls are described each time."""
    return False


def _only(args: Arguments) -> Sequence[Any]:
    return args[0]  # type: ignore[no-any-return]


def _one_and_list(args: Arguments) -> Sequence[Any]:
    [outputs], [given] = args[0], args[1]
    return (given, *outputs)


def _two(args: Arguments) -> Sequence[Any]:
    return (args[1], args[0])


_OF_KEYS: dict[Take, Form] = {
    all_reduce_key: Form(_only, _all_reduce),
    broadcast_key: Form(_only, _broadcast),
    gather_key: Form(_one_and_list, _gather),
    gather_into_one_key: Form(_two, _gather_into_one),
    scatter_from_one_key: Form(_two, _scatter_from_one),
    message_key: Form(_only, _message),
}
FORMS: dict[str, Form] = {
    name: _OF_KEYS[method.short] for name, method in METHODS.items() if method.short is not None
}
"""By method. The calls of others are described each time."""


_getframe = sys._getframe
_MOST_LINES = 1000
_MOST_TRIES = 16
_MOST_ABOVE = 64
"""To compare more frames than that takes as long as to search."""
_MOST_CALLERS = 2
"""One costs 0.1 to 0.2 µs with every call, two 0.24 to 0.31 (measured in one process). With one,
calls behind two layers of the user's own could not be told apart."""
_JUMPS = frozenset({*dis.hasjabs, *dis.hasjrel})
_MOST_ALIKE = 8
_JOIN = f"{os.sep}torch{os.sep}distributed{os.sep}algorithms{os.sep}join.py"
_DEPRECATED = f"{os.sep}typing_extensions.py"


BLOCKING = frozenset(
    inspect.unwrap(function).__code__
    for function in (dist.send, dist.recv)
    if hasattr(inspect.unwrap(function), "__code__")
)
"""torch's functions that wait for the handle that the group gives them, and drop it."""


Standing = tuple[CodeType, int]
"""The code of a frame, and at which instruction it stands; ANYWHERE: that does not matter."""
ANYWHERE = -1


class CallLine(CallOrigin):
    """A line of the user's code from which calls come, as its callers do: `fronts`, torch's public
    function that it calls, with all that this one calls until it comes to the group; the `code`
    that the line is in, which must not be freed, for it is known by its address; how many frames
    above the group's method a function of torch's stood that waits for the handle by itself
    (`blocks_at`; 0: none did), and its code (`blocks_in`), which is looked for there again with
    each call; the sites of the lines of that code that have waited for such a call, by instruction
    (`waits`); the newest call from here (`known`), for most lines make the same one each time; and,
    once it came twice, what tells whether the next is like it (`same`), which is made anew
    `tries_left` times at most, for it costs as much as it saves in ten calls.

    The line is known by the frames `above`, too, up to the last of its callers: of the user's the
    instruction counts. The first one is `by`, at the instruction `by_at`, and the second one is
    `over`, at `over_at` (None: there is no such); `siblings` are the lines of all other callers, by
    address and `by_at`.

    Where code that is not the user's (of a package, of torch's modules and optimizers) makes the
    call for the user's line, the line is known by the instruction in that code, its `code`, and by
    the frames from the next one to the user's, and on. Of the first one of a package the
    instruction counts, too; of the others that none is the user's. No `fronts` and `waits` then:
    the handles of other lines may be waited for in the same code."""

    __slots__ = (
        "above",
        "blocks_at",
        "blocks_in",
        "by",
        "by_at",
        "code",
        "fronts",
        "known",
        "over",
        "over_at",
        "same",
        "siblings",
        "tries_left",
        "waits",
    )

    def __init__(
        self,
        site: int,
        fronts: tuple[CodeType, ...],
        code: CodeType | None,
        blocks_at: int = 0,
        blocks_in: CodeType | None = None,
        above: tuple[Standing, ...] = (),
        placed: bool = True,
    ) -> None:
        super().__init__(site, placed)
        self.fronts = fronts
        self.code = code
        self.blocks_at = blocks_at
        self.blocks_in = blocks_in
        self.above = above
        direct = above if fronts else ()
        nobody: tuple[CodeType | None, int] = (None, ANYWHERE)
        (self.by, self.by_at), (self.over, self.over_at) = [*direct, nobody, nobody][:2]
        self.siblings: dict[tuple[int, int], CallLine] = {}
        self.waits: dict[int, int] = {}
        self.known: Known | None = None
        self.same: Same | None = None
        self.tries_left = _MOST_TRIES


NOWHERE = CallLine(0, (), None)


def _is_front(filename: str) -> bool:
    """Whether a frame is of torch's public functions: theirs, or of a decorator of theirs."""
    if filename.endswith(_DEPRECATED):
        return True
    return call_site.is_distributed(filename) and call_site.frame_kind(filename) == call_site.OWN


def _always(_options: Any) -> bool:
    """The answer where the options do not say."""
    return True


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """The lane of one method of one group.

    `lines` are by instruction of the user's code, not by line: looking up a line number takes
    longer in longer functions. They are those that called torch's public function, which stand
    `depth` frames above the method: torch's own frames below are not looked at again, for to look
    at a frame makes it an object, which costs 0.1 µs each. (So an instruction that calls now
    torch's function, now one of the user's with as many frames, counts as the line of both.)
    `newest` has the last of them for each offset of an instruction, whose code must be compared.
    """

    recorder: Recorder
    group: GroupRecord
    forward: Callable[..., Any]
    known: dict[Facts, Known]
    options: type | None = None
    is_async: Callable[[Any], bool] = _always
    depth: int = 0
    lines: dict[tuple[int, int], list[CallLine]] = field(default_factory=dict)
    newest: dict[int, CallLine] = field(default_factory=dict)
    _by_depth: dict[int, dict[tuple[int, int], list[CallLine]]] = field(default_factory=dict)
    _through: dict[tuple[int, ...], CallLine] = field(default_factory=dict)
    """The lines of calls that other code makes for the user's line, by its instruction, too, and by
    the places of the frames."""

    def take(self, options: type) -> None:
        """From now on the options of the calls are objects of this class; `is_async` tells of one
        whether the program waits by itself."""
        self.is_async = getter(options, "asyncOp") if hasattr(options, "asyncOp") else _always
        self.options = options

    def find(self, frame: FrameType) -> CallLine:
        """The line that led to the call of the method, whose frame this is."""
        user: FrameType | None = frame
        for _ in range(self.depth):
            user = user.f_back if user is not None else None
        if user is not None:
            for line in self.lines.get((id(user.f_code), user.f_lasti), ()):
                if stands_below(user, line.above):
                    return self._take(user.f_lasti, line)
        return self._find(frame)

    def _find(self, frame: FrameType) -> CallLine:
        fronts, found = [], frame.f_back
        while found is not None and _is_front(found.f_code.co_filename):
            fronts.append(found.f_code)
            found = found.f_back
        blocks_at = next((at for at, code in enumerate(fronts, 1) if code in BLOCKING), 0)
        blocks_in = fronts[blocks_at - 1] if blocks_at else None
        if found is None or call_site.frame_kind(found.f_code.co_filename) != call_site.USER:
            above = () if found is None else _above(found)
            if found is None or not above:
                # Where another thread stands by then is no matter of the call's, unless it waits.
                placed = found is not None or call_site.in_backward()
                site = self.recorder.site(frame.f_back)
                return CallLine(site, (), None, blocks_at, blocks_in, placed=placed)
            return self._find_through(frame, found, len(fronts) + 1, above, blocks_at, blocks_in)
        callers = _callers(found)
        above = _standing(callers)
        site = self.recorder.called(self.recorder.site(found), callers)
        of = (tuple(fronts), found.f_code, blocks_at, blocks_in, above, not _joins(frame, found))
        line = CallLine(site, *of)
        self._stand(len(fronts) + 1)
        if len(self.lines) >= _MOST_LINES:
            self.lines.clear()  # a program that makes its code as it goes
            self.newest.clear()
        if line.site:  # 0: there was no room for it
            alike = self.lines.setdefault((id(found.f_code), found.f_lasti), [])
            alike.insert(0, line)
            del alike[_MOST_ALIKE:]
            self._take(found.f_lasti, line)
        return line

    def _take(self, at: int, line: CallLine) -> CallLine:
        """The newest line at this offset of an instruction is this one."""
        before = self.newest.get(at)
        if before is not None and before.code is line.code and line.by is not None:
            line.siblings = before.siblings
            if len(line.siblings) >= _MOST_LINES:
                line.siblings.clear()
        line.siblings[id(line.by), line.by_at] = line
        self.newest[at] = line
        return line

    def _stand(self, depth: int) -> None:
        """From now on the frames to look at first are so many above the method."""
        if depth != self.depth:
            self.depth = depth
            self.lines = self._by_depth.setdefault(depth, {})
            self.newest.clear()

    def _find_through(
        self,
        frame: FrameType,
        found: FrameType,
        depth: int,
        above: tuple[Standing, ...],
        blocks_at: int,
        blocks_in: CodeType | None,
    ) -> CallLine:
        """The user's line for which the code of this frame makes the call."""
        self._stand(depth)
        user = found
        for _ in above:
            user = user.f_back or user
        callers = _callers(user)
        above += _standing(callers)
        places = (value for code, lasti in above for value in (id(code), lasti))
        key = (depth, id(found.f_code), found.f_lasti, *places)
        line = self._through.get(key)
        if line is None:
            site = self.recorder.called(self.recorder.site(found), callers)
            of = (found.f_code, blocks_at, blocks_in, above, not _joins(frame, user))
            line = CallLine(site, (), *of)
            if len(self._through) >= _MOST_LINES:
                self._through.clear()
                self.newest.clear()
            if not site:
                return line
            self._through[key] = line
        self.newest[found.f_lasti] = line
        return line


def _above(frame: FrameType) -> tuple[Standing, ...]:
    """The frames above this one, whose code is not the user's, to the first one whose code is.
    Empty where there is no such, or it is far up, or a graph is below it, which has lines of its
    own."""
    found: list[Standing] = []
    packaged = False
    above: FrameType | None = frame
    while above is not None and len(found) < _MOST_ABOVE:
        if call_site.is_graph(above.f_code):
            break
        code, lasti = above.f_code, above.f_lasti
        kind = call_site.frame_kind(code.co_filename)
        if kind == call_site.USER:
            return () if call_site.is_compiled(code) else (*found, (code, lasti))
        counts = kind == call_site.LIBRARY and not packaged
        packaged |= counts
        if above is not frame:
            found.append((code, lasti if counts else ANYWHERE))
        above = above.f_back
    return ()


def _callers(user: FrameType) -> list[FrameType]:
    """Returns the frames of the user's code that have called this one of it, up to one that goes
    round in a loop: that makes the steps, and who has called it is the same for all of them; and
    none from where on a function comes again: a call at another depth of a recursion comes from the
    same place."""
    callers: list[FrameType] = []
    above = user.f_back
    while above is not None and len(callers) < _MOST_CALLERS:
        code = above.f_code
        if call_site.frame_kind(code.co_filename) != call_site.USER or call_site.is_compiled(code):
            break
        if code is user.f_code or any(code is one.f_code for one in callers):
            break
        callers.append(above)
        if any(one.opcode in _JUMPS and one.argval < one.offset for one in dis.Bytecode(code)):
            break
        above = above.f_back
    return callers


def _standing(callers: Sequence[FrameType]) -> tuple[Standing, ...]:
    return tuple((one.f_code, one.f_lasti) for one in callers)


def _joins(frame: FrameType | None, user: FrameType) -> bool:
    """Whether torch's `Join` has a part in the call, between these two frames: it stands for calls
    that other ranks make."""
    while frame is not None and frame is not user:
        if frame.f_code.co_filename.endswith(_JOIN):
            return True
        frame = frame.f_back
    return False


def stands_below(frame: FrameType | None, above: tuple[Standing, ...]) -> bool:
    """Whether the frames above this one are these."""
    for code, lasti in above:
        frame = frame.f_back if frame is not None else None
        if frame is None or frame.f_code is not code or lasti not in (ANYWHERE, frame.f_lasti):
            return False
    return True
