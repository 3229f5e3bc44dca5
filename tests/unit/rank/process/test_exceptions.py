"""What an exception came of."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from distdebug.rank.process import exceptions
from distdebug.rank.process.exceptions import came_of, leaf_of
from distdebug.record.writing import writer


class Group(Exception):
    """As `ExceptionGroup`, which Python 3.10 does not have."""

    def __init__(self, *inner: BaseException) -> None:
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = inner


LOST = RuntimeError("Connection closed by peer")
OWN = KeyError("labels")


@pytest.mark.parametrize(
    ("error", "leaf"),
    [
        (OWN, OWN),
        (Group(OWN), OWN),
        (Group(LOST, Group(OWN)), OWN),
        (Group(Group(LOST)), LOST),
    ],
    ids=["none", "one", "its own, in a group within", "lost connections alone"],
)
def test_the_leaf(error: BaseException, leaf: BaseException) -> None:
    assert leaf_of(error) is leaf


def test_another_attribute_of_that_name() -> None:
    odd = ValueError("odd")
    for value in ((), (1, 2), ["a"], property()):
        odd.exceptions = value  # type: ignore[attr-defined]
        assert leaf_of(odd) is odd


def test_from_none_hides_nothing_from_us() -> None:
    def wrapped() -> None:
        try:
            try:
                raise Group(LOST)
            except Group:
                raise ValueError("step 4 failed") from None
        except ValueError as error:
            raise TypeError("training failed") from error

    with pytest.raises(TypeError) as caught:
        wrapped()
    first, second = came_of(caught.value)
    assert isinstance(first, ValueError)
    assert second is LOST


def test_a_circle_ends() -> None:
    one, other = ValueError(), TypeError()
    one.__cause__, other.__cause__ = other, one
    assert list(came_of(one)) == [other]


OURS = str(Path(exceptions.__file__).parent / "checked_group.py")
WRITER = writer.__file__
"""In another room, whose code runs in ranks as well."""
TORCHS = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"


def code_in(file: str, text: str, **names: Any) -> Any:
    """What `f` of this text is when its file is that one."""
    space: dict[str, Any] = dict(names)
    exec(compile(text, file, "exec"), space)
    return space["f"]


def raised_by(function: Any, *args: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        function(*args)
    error: BaseException = caught.value
    return error


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("def f(): return None.x", True),
        ("def f(): return {}['a']", True),
        ("def f(): return no_such_name", True),
        ("def f(made=len): return made[0]", True),
        ("def f(): assert 0", False),
        ("def f(): raise TypeError('an argument of the program')", False),
        ("def f(): raise ValueError('an argument of the program')", False),
        ("def f(): return int('x')", False),
        ("import json\ndef f(): return json.dumps(object())", True),
        ("def f(): __tracebackhide__ = True; return [][0]", False),
        ("import struct\ndef f(): return struct.pack('@Q', -1)", True),
        ("def f(): a, b = [1]", True),
        ("def f(): a, *b = []", True),
        ("def f(made={1: 1}):\n for one in made: made[one + 1] = 1", True),
        ("def f(made={1: 1}):\n for one in made: raise RuntimeError('of a backend')", False),
    ],
)
@pytest.mark.parametrize("file", [OURS, WRITER], ids=["rank", "record"])
def test_in_our_own_file(file: str, text: str, ours: bool) -> None:
    assert exceptions.is_own_fault(raised_by(code_in(file, text))) is ours


@pytest.mark.parametrize("text", ["def f(): a, b = [1]", "def f(): return {}['a']"])
def test_what_a_benchmark_raises_is_its_own(text: str) -> None:
    """It plays the user's part."""
    file = str(Path(exceptions.__file__).parents[2] / "benchmarks" / "overhead.py")
    assert not exceptions.is_own_fault(raised_by(code_in(file, text)))


def test_in_torchs_file_because_of_what_we_put_there() -> None:
    """torch 2.15 subscripts the builtin `type`, where there once was a function of ours."""
    shadow = code_in(OURS, "def f(*args): return None")
    function = code_in(TORCHS, "def f(): return type[int]", type=shadow)
    remembered = types.SimpleNamespace(lines=["def f(): return type[int]"])
    exceptions.linecache.cache[TORCHS] = (25, None, remembered.lines, TORCHS)
    try:
        assert exceptions.is_own_fault(raised_by(function))
    finally:
        del exceptions.linecache.cache[TORCHS]


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return None.x",
        "def f(): return list(5)",
        "def f(): raise TypeError('wrong')",
        "def f(): a, b = [1]",
    ],
)
def test_in_torchs_file_for_its_own_reasons(text: str) -> None:
    assert not exceptions.is_own_fault(raised_by(code_in(TORCHS, text)))


def test_a_registry_that_misses_a_group_of_ours() -> None:
    text = "def f(group): return {}[group]"
    group = type("CheckedGroup", (), {"__repr__": lambda _: "<CheckedGroup 'tp'>"})()
    assert exceptions.is_own_fault(raised_by(code_in(TORCHS, text), group))
    assert not exceptions.is_own_fault(raised_by(code_in(TORCHS, text), "tp"))


def test_in_the_program() -> None:
    assert not exceptions.is_own_fault(raised_by(code_in("/home/me/train.py", "def f(): None.x")))
    within = code_in("/home/me/train.py", "def f(): None.x")
    assert not exceptions.is_own_fault(raised_by(code_in(OURS, "def f(g): g()"), within))


def test_the_bindings_refuse_an_argument() -> None:
    text = "def f(): raise_it()"

    def refuse() -> None:
        raise TypeError("allreduce(): incompatible function arguments. The following ...")

    error = raised_by(code_in(OURS, text, raise_it=refuse))
    assert not exceptions.is_unmeant(error)


@pytest.mark.parametrize(
    ("text", "of_another"),
    [
        ("def f(): return int('x')", True),  # as a future raises what its function has raised
        ("def f(): raise ValueError('this worker has a name already')", False),
    ],
)
def test_what_a_function_on_another_worker_has_raised(text: str, of_another: bool) -> None:
    rpc = TORCHS.replace("distributed_c10d.py", "rpc/api.py")
    assert exceptions.is_of_another_worker(raised_by(code_in(rpc, text))) is of_another
    assert not exceptions.is_of_another_worker(raised_by(code_in(TORCHS, text)))
