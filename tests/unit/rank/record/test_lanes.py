"""What a call looks up: the user's line, at the place of the last time, and the key of the call."""

from __future__ import annotations

import _thread
import os
import queue
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdebug.rank.record.describe import METHODS
from distdebug.rank.record.lanes import CallLine, Lane, stands_below
from distdebug.rank.record.recorder import Recorder


class Sites(Recorder):
    """Numbers lines as a recorder does, without a record."""

    def __init__(self) -> None:
        self.sites = {}
        self._texts: list[tuple[str, int, str]] = []
        self.through: list[str] = []

    def site_at(self, file: str, line: int, function: str, through: str = "") -> int:
        self._texts.append((os.path.basename(file), line, function))
        self.through.append(through)
        return len(self._texts)


def made_in(file: str) -> Callable[[Callable[[], CallLine]], CallLine]:
    """A function that calls what it is given, as one of that file."""
    space: dict[str, Any] = {}
    exec(compile("def public(method):\n    return method()\n", file, "exec"), space)
    public: Callable[[Callable[[], CallLine]], CallLine] = space["public"]
    return public


PACKAGE = os.path.dirname(dist.__file__)
public = made_in(os.path.join(PACKAGE, "made_up.py"))
elsewhere = made_in(os.path.join(os.path.dirname(PACKAGE), "nn", "made_up.py"))
package = made_in("/env/site-packages/fakelib/state.py")
other_package = made_in("/env/site-packages/otherlib/state.py")
graph = made_in("<eval_with_key>.7")


def _made_by_package() -> Callable[[Callable[[], CallLine]], CallLine]:
    space: dict[str, Any] = {"public": public}
    text = "def inner(method):\n    return public(method)\n"
    exec(compile(text, "/env/site-packages/fakelib/inner.py", "exec"), space)
    made: Callable[[Callable[[], CallLine]], CallLine] = space["inner"]
    return made


made_by_package = _made_by_package()


class Method:
    """Looks up its line as the methods of a checked group do."""

    def __init__(self) -> None:
        self.recorder = Sites()
        group: Any = None
        self.lane = Lane(self.recorder, group, lambda: None, {})
        self.searches = 0
        self.found: queue.SimpleQueue[CallLine] = queue.SimpleQueue()

    def __call__(self) -> CallLine:
        try:
            frame: FrameType = sys._getframe(self.lane.depth)
        except ValueError:
            frame = sys._getframe(0)
        line = self.lane.newest.get(frame.f_lasti)
        if (
            line is None
            or line.code is not frame.f_code
            or (line.above and not stands_below(line.above, self.lane.depth))
        ):
            self.searches += 1
            line = self.lane.find(sys._getframe(0))
        self.found.put(line)
        return line

    def text(self, line: CallLine) -> tuple[str, int, str]:
        return self.recorder._texts[line.site - 1]


def test_a_line_is_searched_once() -> None:
    method = Method()
    found = {public(method) for _ in range(3)}
    assert method.searches == 1
    (line,) = found
    assert method.text(line)[0] == os.path.basename(__file__)
    assert line.fronts == (public.__code__,)  # type: ignore[attr-defined]


def test_lines_at_other_depths_are_told_apart() -> None:
    method = Method()

    def direct() -> CallLine:
        return method()

    def twice() -> CallLine:
        return public(lambda: public(method))

    for _ in range(2):
        lines = [public(method), direct(), twice(), elsewhere(method)]
        functions = [method.text(line)[2] for line in lines]
        here = "test_lines_at_other_depths_are_told_apart"
        assert functions == [here, "direct", "<lambda>", here]
        numbers = [method.text(line)[1] for line in lines]
        assert numbers[0] == numbers[3]
    assert not lines[3].fronts  # torch's, but not its public function


def test_two_lines_of_one_function() -> None:
    method = Method()
    for _ in range(2):
        first = public(method)
        second = public(method)
        assert method.text(second)[1] - method.text(first)[1] == 1


def test_a_package_that_makes_the_call_is_named_beside_the_users_line() -> None:
    method = Method()

    def user() -> CallLine:
        return package(lambda: public(method))

    def by_package() -> CallLine:
        return package(inner)

    inner = partial(made_by_package, method)
    for _ in range(2):
        lines = [public(method), user(), by_package()]
        functions = [method.text(line)[2] for line in lines]
        here = "test_a_package_that_makes_the_call_is_named_beside_the_users_line"
        assert functions == [here, "<lambda>", "by_package"]
        through = [method.recorder.through[line.site - 1] for line in lines]
        assert through == ["", "", "fakelib/inner.py:2"]


def test_a_line_for_which_a_package_calls_is_searched_once() -> None:
    method = Method()

    def from_package() -> CallLine:
        return made_by_package(method)

    for _ in range(3):
        line = from_package()
        assert method.text(line)[2] == "from_package"
        assert method.recorder.through[line.site - 1] == "fakelib/inner.py:2"
    assert method.searches == 1
    assert not line.fronts


def test_lines_for_which_the_same_code_calls_are_told_apart() -> None:
    method = Method()
    for _ in range(2):
        first = made_by_package(method)
        second = made_by_package(method)
        assert method.text(second)[1] - method.text(first)[1] == 1


def test_a_users_function_between_is_whose_line_it_is() -> None:
    """The frames above and below it are as they were without it."""
    method = Method()

    def mine(inner: Callable[[], CallLine]) -> CallLine:
        return inner()

    here = "test_a_users_function_between_is_whose_line_it_is"
    for _ in range(2):
        for between, function in ((elsewhere, here), (mine, "mine")):
            line = between(partial(made_by_package, method))
            assert method.text(line)[2] == function


def test_the_first_package_on_the_way_is_named_each_time() -> None:
    method = Method()
    for _ in range(2):
        for by, name in ((package, "fakelib"), (other_package, "otherlib")):
            line = by(partial(elsewhere, partial(public, method)))
            assert method.recorder.through[line.site - 1] == f"{name}/state.py:2"


def test_two_lines_of_a_package_are_told_apart() -> None:
    method = Method()
    space: dict[str, Any] = {}
    text = "def both(call):\n    first = call()\n    return first, call()\n"
    exec(compile(text, "/env/site-packages/fakelib/both.py", "exec"), space)
    for _ in range(2):
        lines = space["both"](partial(elsewhere, partial(public, method)))
        through = [method.recorder.through[line.site - 1] for line in lines]
        assert through == ["fakelib/both.py:2", "fakelib/both.py:3"]


def test_a_graph_is_searched_each_time() -> None:
    """Its lines are found in another way, and the user's frame stands still meanwhile."""
    method = Method()
    for _ in range(3):
        assert method.text(graph(partial(elsewhere, partial(public, method))))
    assert method.searches == 3


def test_a_line_that_is_far_up_is_searched_each_time() -> None:
    method = Method()
    deep: Callable[[], CallLine] = partial(elsewhere, partial(public, method))
    for _ in range(100):
        deep = partial(elsewhere, deep)
    for _ in range(3):
        line = deep()
        assert method.text(line)[2] == "test_a_line_that_is_far_up_is_searched_each_time"
    assert method.searches == 3


def test_a_thread_without_a_line() -> None:
    """Its bottom frame is the method's, as where C++ calls it."""
    method = Method()
    method.lane.depth = 3  # it looks for lines further up than there are frames
    _thread.start_new_thread(method, ())
    line = method.found.get(timeout=30)
    assert not line.fronts
    assert not method.lane.lines
    # What the main thread does meanwhile is the best that there is to say.
    assert line.site == 0 or method.text(line)[0] == os.path.basename(__file__)


def _all_reduce_options(op: Any, cls: Any = dist.AllreduceOptions) -> Any:
    options = cls()
    options.reduceOp = op
    return options


def _root(rank: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
ONE, FLAT, PAIR = torch.ones(1), torch.ones(4), torch.ones(2, 2)
DOUBLE, META = torch.ones(4, dtype=torch.float64), torch.ones(4, device="meta")
TENSORS: list[Any] = [[ONE], [FLAT], [PAIR], [DOUBLE], [META], [FLAT, FLAT], [FLAT, ONE], ONE, FLAT]


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "allreduce",
            [(tensors, _all_reduce_options(op)) for tensors in TENSORS for op in (SUM, MAX)]
            + [([FLAT],), ([FLAT], SUM), ([FLAT], MAX), (FLAT, MAX)],
        ),
        (
            "broadcast",
            [(tensors, _root(root)) for tensors in TENSORS for root in (0, 1)]
            + [([FLAT],), (FLAT, 1)],
        ),
        (
            "send",
            [(tensors, peer, tag) for tensors in TENSORS for peer in (0, 1) for tag in (0, 1)],
        ),
        (
            "_allgather_base",
            [(out, given) for out in (FLAT, PAIR, DOUBLE) for given in (ONE, FLAT, DOUBLE, META)],
        ),
        (
            "_reduce_scatter_base",
            [
                (out, given, _all_reduce_options(op, dist.ReduceScatterOptions))
                for out in (ONE, FLAT, META)
                for given in (FLAT, PAIR)
                for op in (SUM, MAX)
            ]
            + [(ONE, FLAT)],
        ),
    ],
)
def test_a_key_determines_the_facts(name: str, calls: list[tuple[Any, ...]]) -> None:
    method = METHODS[name]
    by_key: dict[Any, Any] = {}
    for args in calls:
        facts = method.facts(args)
        assert by_key.setdefault(method.key(args), facts) == facts
    assert len(set(by_key.values())) > 3
