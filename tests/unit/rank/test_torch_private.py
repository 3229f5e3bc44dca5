"""What this layer knows of torch's insides, and what it does where they are not as known."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch.distributed import ProcessGroup, Work

from distdebug.rank import torch_private
from distdebug.rank.group import checked_group
from distdebug.rank.record.describe import METHODS
from distdebug.rank.record.waiting import ForwardingWork
from distdebug.rank.torch_private import groups, probe, self_test
from distdebug.rank.torch_private.probe import Private, WatchedPart
from distdebug.record import torch_versions

HOME = Path(torch_private.__file__).parent
OWN = frozenset({"_inner", "_record", "_host_emptyCache"})
"""Of this layer's own objects; and what a plan gives to a torch that has no GPUs."""

HARMLESS = {
    "_device_types _get_backend get_backend _backend_id": "the same backends are registered",
    "_get_backend_name bound_device_id group_name group_desc": "copied, or the same backend's",
    "_register_backend _set_default_backend _set_group_name _set_group_desc": "of the making",
    "_id unbox": "for the registry of torch's C++ code: it is to find the group in front",
    "supports_abort_hooks supports_completion_hooks": "asks the default backend, the same one",
    "supports_reconfigure supports_window": "asks the default backend, the same one",
    "use_pg_for_symm_mem_rendezvous": "a flag that is read from the group in front alone",
    "BackendType": "a type",
}
"""All other names that a ProcessGroup has, and why they may stay what torch makes of them."""


@pytest.fixture(autouse=True)
def _no_more_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "REGISTRY", probe.Registry())


def test_every_method_of_a_group_is_known() -> None:
    """One that is not would pass by the layer unseen."""
    names = {
        name
        for base in ProcessGroup.__mro__
        if base.__module__.partition(".")[0] == "torch"
        for name in vars(base)
        if not name.startswith(("__", "_pybind11_"))
    }
    kept = {name for row in HARMLESS for name in row.split()}
    recorded = {name for name in METHODS if name in vars(checked_group.CheckedGroup)}
    forwarded = set(checked_group.FORWARDED) | set(checked_group.UNRECORDED)
    own = set(vars(checked_group.CheckedGroup))
    types = set(ProcessGroup.BackendType.__members__)  # type: ignore[attr-defined]
    assert names - recorded - forwarded - own - kept - types == set()
    assert not kept & (recorded | forwarded), "harmless, and not"


def test_a_method_that_nobody_knows_would_be_noticed() -> None:
    assert "all_to_nobody" not in METHODS
    assert not hasattr(checked_group.CheckedGroup, "all_to_nobody")


def test_every_method_of_a_handle_is_known() -> None:
    """One that is not would be answered by torch's own, which knows nothing of the call."""
    boxing = {"boxed", "unbox"}  # into what C++ knows the handle in front as
    names = {name for name in vars(Work) if not name.startswith(("__", "_pybind11_"))}
    assert names - boxing - set(vars(ForwardingWork)) == set()


def test_what_cpp_code_looks_for_is_there() -> None:
    """torch's C++ code calls a Python group by these names, some of which Python never uses."""
    own = vars(checked_group.CheckedGroup)
    assert {"recvAnysource", "start_coalescing", "end_coalescing", "splitGroup"} <= own.keys()
    assert own["recvAnysource"] is own["recv_anysource"]


def test_all_private_names_that_are_used_are_in_the_tables() -> None:
    """So that each is looked for before it is used, and taken away by the test of mutations."""
    known = {
        name
        for file in HOME.glob("*.py")
        for text in _strings(file)
        for name in text.replace(":", ".").split(".")
    }
    for file in sorted(HOME.glob("*.py")):
        if file.name in ("self_test.py", "probe.py"):
            continue  # which looks for its own, and the tables' reader
        for line, name in _private_attributes(file):
            assert name in known | OWN, f"{file.name}:{line} uses {name}, which no table has"


def _strings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value


def _private_attributes(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Attribute) or _of_self(node):
            continue
        if node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node.lineno, node.attr


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def test_everything_is_as_known_in_this_torch() -> None:
    parts = [
        value
        for module in (groups, *map(_module, ("calls", "training")))
        for value in vars(module).values()
        if isinstance(value, WatchedPart) and value.name != "compiled_programs"  # which costs 3 s
    ]
    assert len(parts) >= 10
    assert {part.name: part.why for part in parts if not part.works} == {}
    self_test.try_a_front()
    assert groups.CREATION.works, groups.CREATION.why


def _module(name: str) -> ModuleType:
    return __import__(f"distdebug.rank.torch_private.{name}", fromlist=[name])


class Insides:
    """Stands for a module of torch's."""

    _table: ClassVar[dict[str, int]] = {}
    _no_table = ()

    def _plain(self, device: int, kind: int = 0) -> None: ...

    def _greedy(self, device: int, more: int) -> None: ...

    def _documented(self) -> None:
        pass


class _Documented:
    __name__ = "_take"
    __doc__ = (
        "_take(self: torch.Group, given: collections.abc.Sequence[tuple[int, str]], "
        "by: typing.Callable[[int], None] = None) -> list[int]\n\nTakes."
    )
    __signature__ = "none"

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("private", "wrong"),
    [
        (Private("math", "pi"), ""),
        (Private("math", "_pi"), "has no math._pi"),
        (Private("no_such_module", "x"), "has no no_such_module.x"),
        (Private("math", "pi", ("x",)), "math.pi of torch {} cannot be called"),
        (Private("math", "pi", kind=dict), "math.pi of torch {} is no dict"),
        (Private("here", "Insides._table", kind=dict), ""),
        (Private("here", "Insides._no_table", kind=dict), "is no dict"),
        (Private("here", "Insides._plain", ("self", "device"), called=True), ""),
        (Private("here", "Insides._plain", ("self", "place")), "takes other arguments (self, dev"),
        (Private("here", "Insides._greedy", ("self", "device"), called=True), "needs more argu"),
        (Private("here", "Insides._greedy", ("self", "device")), ""),
    ],
)
def test_what_is_not_as_known_is_told(
    private: Private, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ModuleType("here")
    here.Insides = Insides  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "here", here)
    told = private.unlike()
    assert (wrong.format(torch.__version__) in told) if wrong else (told == ""), told


def test_arguments_of_a_function_of_cpp() -> None:
    names = probe._of_documentation(_Documented())
    assert names == {"self": True, "given": True, "by": False}
    taken = probe._of_documentation(ProcessGroup._register_backend)
    assert taken is not None
    assert list(taken)[:3] == ["self", "device", "backend_type"]
    assert probe._of_documentation(ProcessGroup.allreduce) is None  # overloaded


def test_a_part_that_is_off_does_nothing_and_says_so_once() -> None:
    heard: list[str] = []
    part = WatchedPart("echo", "echoes are not heard", Private("math", "_no_such"))
    done: list[int] = []
    act = part(done.append)
    assert act(1) is None
    probe.REGISTRY.on_off(lambda one: heard.append(f"{one.lost}: {one.why}"))
    act(2)
    assert done == []
    assert heard == [f"echoes are not heard: torch {torch.__version__} has no math._no_such"]
    part.switch_off("another reason")
    assert len(heard) == 1


def test_a_part_that_turns_out_not_to_work() -> None:
    heard: list[WatchedPart] = []
    probe.REGISTRY.on_off(heard.append)
    part = WatchedPart("echo", "echoes are not heard", Private("math", "pi"))
    assert part.works
    part.switch_off("the trial went wrong")
    assert not part.works
    assert heard == [part]


def test_a_trial_that_goes_wrong_switches_groups_off(monkeypatch: pytest.MonkeyPatch) -> None:
    part = WatchedPart("groups", "nothing is seen")
    monkeypatch.setattr(self_test, "CREATION", part)
    # A class of its own: torch's C++ code remembers for ever that a class does not have a method.
    deaf = type("Deaf", (torch.distributed.ProcessGroup,), {})
    monkeypatch.setattr(self_test, "_TrialGroup", deaf)
    self_test.try_a_front()
    assert "a trial with torch" in part.why
    assert "does not get the calls" in part.why
    with pytest.raises(RuntimeError):  # nothing of it is left
        torch.distributed.distributed_c10d._resolve_process_group("distdebug/self-test")


def test_a_trial_in_a_torch_that_nobody_has_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end the process that it runs in."""
    for trial, why in {
        "crash": "it ended with -11, by signal 11",
        "hang": "it has not ended in 1 s",
        "refuse": "the backend is another one",
        "work": "",
    }.items():
        part = WatchedPart("groups", "nothing is seen")
        monkeypatch.setattr(self_test, "CREATION", part)
        # Where it is not waited out, a crowded machine may need more.
        monkeypatch.setattr(self_test, "SELF_TEST_S", 1.0 if trial == "hang" else 60.0)
        monkeypatch.setattr(torch_versions, "NEWEST", (2, 10))
        monkeypatch.setattr(self_test, "_unlike", lambda trial=trial, why=why: _try(trial, why))
        self_test.try_a_front()
        assert part.works is (trial == "work")
        assert why in part.why


def _try(trial: str, why: str) -> str:
    if trial == "crash":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    while trial == "hang":
        signal.pause()
    return why


def test_what_is_patched_stays_what_it_was_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("far_away")
    monkeypatch.setitem(__import__("sys").modules, "far_away", module)

    def reach(group: Any, tag: int = 3) -> Any:
        """Reach it."""
        return (group, tag)

    reach.__module__, reach.__qualname__ = "far_away", "reach"
    module.reach = reach  # type: ignore[attr-defined]
    probe.patch(module, "reach", lambda original: lambda *args: original(*args))
    made = module.reach
    assert made is not reach
    assert inspect.signature(made) == inspect.signature(reach)
    assert (made.__name__, made.__doc__) == ("reach", "Reach it.")
    assert pickle.loads(pickle.dumps(made)) is made
    assert functools.wraps(made)(lambda: 0).__wrapped__ is made
    probe.patch(module, "not_there", lambda _original: lambda: None)
    assert not hasattr(module, "not_there")
