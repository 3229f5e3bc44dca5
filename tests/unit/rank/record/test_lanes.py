"""What a call looks up: the user's line, at the place of the last time, and the key of the call."""

from __future__ import annotations

import _thread
import itertools
import os
import queue
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdebug.rank.group import checked_group
from distdebug.rank.record.describe import METHODS
from distdebug.rank.record.lanes import FORMS, CallLine, Form, Lane, Same, stands_below
from distdebug.rank.record.recorder import Recorder
from distdebug.rank.torch_private import tensor_guards
from distdebug.rank.torch_private.tensor_guards import tensor_guard


class Sites(Recorder):
    """Numbers lines as a recorder does, without a record."""

    def __init__(self) -> None:
        self.sites = {}
        self.callers: dict[int, list[str]] = {}
        self.called_by: dict[Any, int] = {}
        self._texts: list[tuple[str, int, str]] = []
        self.through: list[str] = []

    def called(self, site: int, callers: Sequence[FrameType]) -> int:
        rows = tuple((one.f_code.co_name, one.f_lineno) for one in callers)
        text = self._texts[site - 1]
        if (text, rows) not in self.called_by:
            self._texts.append(text)
            self.through.append(self.through[site - 1])
            self.called_by[text, rows] = len(self._texts)
        found = self.called_by[text, rows] if rows else site
        self.callers[found] = [name for name, _ in rows]
        return found

    def site_at(self, file: str, line: int, function: str, through: str = "", *_: Any) -> int:
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
        if line is None or line.code is not frame.f_code or not stands_below(frame, line.above):
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


c10d: Any = torch._C._distributed_c10d


class Call:
    """Of `Known`, what is looked at here."""

    def __init__(self, key: Any) -> None:
        self.key = key


def tensors() -> Iterator[torch.Tensor]:
    """Like none of each other, but for the last two."""
    yield torch.zeros(2, 3)
    yield torch.zeros(3, 2)
    yield torch.zeros(2, 3, 1)
    yield torch.zeros(0, 3)
    yield torch.zeros(())
    yield torch.zeros(2, 3, dtype=torch.int32)
    yield torch.zeros(2, 3, device="meta")
    yield torch.zeros(2, 3, requires_grad=True)
    yield torch.zeros(2, 3).to_sparse()
    yield torch.nn.Parameter(torch.zeros(2, 3))
    yield torch.zeros(3, 2).t()


def reducing(options: type, op: Any) -> Any:
    made = options()
    made.reduceOp = op
    return made


def broadcast(root: int) -> Any:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    return options


OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
AllReduce, Scatter = c10d.AllreduceOptions, c10d.ReduceScatterOptions
VARIANTS: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
    "allreduce": lambda: [
        *(([one], reducing(AllReduce, op)) for one in tensors() for op in OPS),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], AllReduce()),
        ([torch.zeros(2, 3)], dist.ReduceOp.SUM),
        ([torch.zeros(2, 3)],),
        (torch.zeros(1, 2, 3), AllReduce()),
        ([], AllReduce()),
    ],
    "broadcast": lambda: [
        *(([one], broadcast(root)) for one in tensors() for root in (0, 1)),
        ([torch.zeros(2, 3)], 0),
        (torch.zeros(1, 2, 3), broadcast(0)),
    ],
    "allgather": lambda: [
        *(
            ([[torch.empty_like(one), other]], [one], None)
            for one, other in itertools.product(tensors(), repeat=2)
        ),
        ([[torch.zeros(2, 3)]], [torch.zeros(2, 3)], None),
        ([torch.zeros(2, 2, 3)], [torch.zeros(2, 3)], None),
    ],
    "_allgather_base": lambda: [
        (one, other, None) for one, other in itertools.product(tensors(), repeat=2)
    ],
    "_reduce_scatter_base": lambda: [
        (one, other, reducing(Scatter, op))
        for one, other in itertools.product(tensors(), repeat=2)
        for op in OPS
    ],
    "send": lambda: [
        *(([one], peer, tag) for one in tensors() for peer in (0, 1) for tag in (0, 1)),
        ([torch.zeros(2, 3)], True, 0),
        (torch.zeros(1, 2, 3), 0, 0),
    ],
}


def same(form: Form, key: Any, args: tuple[Any, ...]) -> Same | None:
    known: Any = Call(key)
    return form.same(known, args, tensor_guard)


@pytest.mark.parametrize("method", VARIANTS)
def test_what_is_like_a_call_has_its_key(method: str) -> None:
    form, key_of = FORMS[method], METHODS[method].key
    variants = VARIANTS[method]()
    found = 0
    for args in variants:
        newest = same(form, key_of(args), args)
        if newest is None:
            continue
        for others in variants:
            if form.is_like(newest.guard, newest.known.key, others):
                assert key_of(others) == key_of(args), (args, others)
                found += others is not args
    assert found, "a tensor with other strides makes the same call"


@pytest.mark.parametrize("method", FORMS)
def test_each_form_is_of_a_method_with_a_short_key(method: str) -> None:
    assert METHODS[method].short is not None


def test_a_call_is_like_itself_until_its_tensor_changes() -> None:
    form, one = FORMS["allreduce"], torch.zeros(4)
    args = ([one], AllReduce())
    newest = same(form, METHODS["allreduce"].key(args), args)
    assert newest is not None
    assert form.is_like(newest.guard, newest.known.key, args)
    one.resize_(2)
    assert not form.is_like(newest.guard, newest.known.key, args)
    one.data = torch.zeros(4, dtype=torch.float64)
    assert not form.is_like(newest.guard, newest.known.key, args)


class Own(torch.Tensor):
    pass


def test_what_a_guard_cannot_tell_is_described_each_time() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these are new
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert tensor_guard([torch.zeros(2).as_subclass(Own)]) is None
    assert tensor_guard([nested]) is None
    one = torch.zeros(2)
    args = ([[one, one]], [one])  # a guard says no to a tensor that is given twice
    assert same(FORMS["allgather"], METHODS["allgather"].key(args), args) is None


def test_in_a_plan_tensors_answer_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensor_guard([torch.zeros(2)]) is not None
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False), raising=False)
    assert tensor_guard([torch.zeros(2)]) is None


@pytest.mark.parametrize("told", ["yes", "no"])
def test_guards_that_tell_something_else_are_left_alone(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    off: list[str] = []
    monkeypatch.setattr(tensor_guards.TENSOR_GUARDS, "switch_off", off.append)
    tensor_guards.try_tensor_guards()
    assert off == []
    monkeypatch.setattr(tensor_guards, "_made", lambda _: lambda *_: told == "yes")
    tensor_guards.try_tensor_guards()
    assert len(off) == 1


def test_guards_that_cannot_be_made_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    off: list[str] = []
    monkeypatch.setattr(tensor_guards.TENSOR_GUARDS, "switch_off", off.append)
    monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", "something else")
    tensor_guards.try_tensor_guards()
    (said,) = off
    assert "TypeError" in said


def test_all_forms_are_used() -> None:
    assert set(FORMS) <= {name for name in METHODS if name in vars(checked_group.CheckedGroup)} | {
        "all_gather_single",  # from torch 2.14 on
        "reduce_scatter_single",
    }


def names_of(method: Method, line: CallLine) -> list[str]:
    """The functions of the callers."""
    return method.recorder.callers[line.site]


def test_a_line_is_known_by_those_who_call_it() -> None:
    method = Method()

    def layer() -> CallLine:
        return public(method)

    def one() -> CallLine:
        return layer()

    def other() -> CallLine:
        return layer()

    def step() -> list[CallLine]:
        return [one(), other(), one(), other()]

    first = step()
    assert first[0].site == first[2].site != first[1].site == first[3].site
    assert [names_of(method, line) for line in first[:2]] == [["one", "step"], ["other", "step"]]
    searches = method.searches
    assert step() == first
    assert method.searches == searches + 4  # as `Method` has it, without `siblings`
    assert len(set(first)) == 4  # by instruction
    assert len(first[0].siblings) == 2


def test_what_called_a_function_with_a_loop_is_no_part_of_the_place() -> None:
    method = Method()

    def loops() -> CallLine:
        for _ in range(3):
            line = public(method)
        return line

    def driver() -> CallLine:
        while True:
            line = loops()
            if method.searches:
                return line

    assert names_of(method, driver())[0] == "driver"
    assert len(names_of(method, driver())) <= 2

    def trains() -> list[CallLine]:
        found: list[CallLine] = []
        while len(found) < 2:
            found.append(loops())
        return found

    (line, again) = trains()
    assert line is again
    assert names_of(method, line) == ["trains"]


def test_a_recursion_has_no_callers() -> None:
    method = Method()

    def walk(depth: int) -> CallLine:
        if depth:
            return walk(depth - 1)
        return public(method)

    assert names_of(method, walk(3)) == []
    assert walk(2) is walk(1)


def test_a_recursion_through_others_has_these_as_callers() -> None:
    method = Method()

    def walk(depth: int) -> CallLine:
        return left(depth - 1) if depth else public(method)

    def left(depth: int) -> CallLine:
        return walk(depth)

    assert names_of(method, walk(3)) == ["left"]
    assert walk(2) is walk(1)


def test_what_joined_ranks_call_has_no_place() -> None:
    joins = made_in(os.path.join(PACKAGE, "algorithms", "join.py"))
    method = Method()
    line = joins(lambda: public(method))
    assert line.site
    assert not joins(method).place
    assert public(method).place
