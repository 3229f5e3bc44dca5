"""The line of a call in a function that torch.compile has compiled, whose frame stands at its first
line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from distdebug.rank.record import call_site
from distdebug.rank.torch_private.calls import lines_in_graph
from tests.unit.rank.record.test_lanes import Sites

PLACES: list[int] = []
"""What the recorder says of each call, as its number of the line."""
SITES = Sites()
TRACE = """\
  File "/home/user/train.py", line 30, in main
    step(x)
  File "/home/user/train.py", line {}, in step
    dist.all_reduce(y)
  File "{}", line 1941, in _remapped_allreduce
    all_reduce_inplace(*args, **kwargs)
"""


def c10d_all_reduce(x: torch.Tensor) -> torch.Tensor:
    PLACES.append(SITES.site(sys._getframe(1)))
    return x


def c10d_that_another_thread_looks_at(x: torch.Tensor) -> torch.Tensor:
    frame = sys._getframe(1)
    PLACES.extend([SITES.site(frame, of_another=True), SITES.site(frame)])
    return x


def other(x: torch.Tensor) -> torch.Tensor:
    return c10d_all_reduce(x)


def compiled(*lines: int, function: Any = c10d_all_reduce) -> Any:
    """A function of the user's as torch.compile leaves it: it calls a graph, which calls this one
    once for each of the lines."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for line in lines:
        value = graph.call_function(torch.neg, (value,))
        value = graph.call_function(function, (value,))
        value.stack_trace = TRACE.format(line, torch.distributed.__file__)
    graph.output(value)
    space: dict[str, Any] = {"__compiled_fn_1": torch.fx.GraphModule({}, graph)}
    code = "\n" * 7 + "def step(x):\n    return __compiled_fn_1(x)\n"
    exec(compile(code, "/home/user/train.py", "exec"), space)
    return space["step"]


@pytest.fixture(autouse=True)
def anew() -> None:
    PLACES.clear()
    SITES.__init__()  # type: ignore[misc]
    SITES.lines_in_graph = lines_in_graph


def shown() -> list[tuple[int, str]]:
    return [SITES._texts[number - 1][1:] for number in PLACES]


def test_each_call_of_a_graph_has_its_own_line() -> None:
    step = compiled(12, 15)
    for _ in range(2):  # the second time from what is kept
        step(torch.ones(2))
    assert shown() == [(12, "step"), (15, "step")] * 2
    assert len(SITES._texts) == 3  # and the line of the function itself


def test_a_look_from_another_thread_does_not_hide_it() -> None:
    compiled(12, function=c10d_that_another_thread_looks_at)(torch.ones(2))
    assert shown() == [(9, "step"), (12, "step")]


def test_without_what_torch_keeps_it_is_the_functions_line() -> None:
    step = compiled(12)
    step.__globals__["__compiled_fn_1"]._lineno_map = None
    step(torch.ones(2))
    assert shown() == [(9, "step")]


def test_a_function_of_the_users_that_a_graph_calls_has_its_own_line() -> None:
    compiled(12, function=other)(torch.ones(2))
    assert [function for _, function in shown()] == ["other"]


def test_what_inductor_writes_is_no_code_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_site.frame_kind("/tmp/torchinductor_me/qs/cqsk.py") == call_site.OWN
    assert call_site.frame_kind("/scratch/cache/qs/cqsk.py") == call_site.USER
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/cache")
    assert call_site.frame_kind("/scratch/cache/qs/cqsl.py") == call_site.OWN
