"""A torch as it may be some day: a private name that the layer uses is gone, is something else, or
takes other arguments, while torch's own code goes on by another name.

Runs in a process that is forked where torch is loaded. The tables that `probe` looks at say which
names there are, so that a new one is tried without anybody thinking of it.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import random
import runpy
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdebug.record.reading.records import Records, newest_ranks
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.reports import off
from distdebug.testing.channel import MessageChannel
from tests.support import forked_program, hook_by_hand
from tests.support.in_fork import end, forked, surroundings

SCRIPT = Path(__file__).resolve().parents[1] / "ranks" / "scripts" / "many_ways.py"
SEED = 14
LIMIT_S = 60.0
RANKS = 2
AT_RANDOM = 40
"""How many mutations change several names at once."""
Mutation = tuple[tuple[str, str], ...]
"""Names (module:path) with what becomes of each."""


# -- which there are ----------------------------------------------------------------------------


OF_PLANS = ("sent_objects", "weak_storages")
"""Parts of `plan` that are not called so."""


def table() -> dict[str, Any]:
    """Every private name of the tables that are used with this torch, by module:path."""
    return {f"{one.module}:{one.path}": one for part in parts() for one in part.needs}


def parts() -> list[Any]:
    """Those of a rank that runs; the fork server has what a planned one needs, too."""
    probe = sys.modules["_distdebug.rank.torch_private.probe"]
    return [
        part
        for part in probe.REGISTRY.parts
        if not (part.name.startswith("planned_") or part.name in OF_PLANS)
    ]


def mutations() -> list[Mutation]:
    """One name at a time, each in every way; then several at random."""
    names = table()
    single = [(name, kind) for name, one in names.items() for kind in kinds(one)]
    chance = random.Random(SEED)
    several = [
        tuple(
            {
                name: (name, kind) for name, kind in chance.sample(single, chance.randint(2, 6))
            }.values()
        )
        for _ in range(AT_RANDOM)
    ]
    return [*((one,) for one in single), *several]


def kinds(private: Any) -> list[str]:
    """What may become of this name."""
    if not loaded(private):
        return []
    found = private.find()
    ways = ["gone", "something else", "raises"]
    if isinstance(found, dict):
        ways.append("a copy")
    elif callable(found) and not inspect.isclass(found):
        ways.append("does nothing")
        if not component(private)[2]:
            ways.append("other arguments")
    return ways


def loaded(private: Any) -> bool:
    """Not what nobody has imported: mutating it would import it."""
    return private.module in sys.modules


def component(private: Any) -> tuple[Any, str, bool]:
    """The owner and the name in it that is mutated: the last of the path, or the class that has it
    where it is one of Python's own, such as `__init__`; whether it is that."""
    *path, last = private.path.split(".")
    special = last.startswith("__")
    if special:
        *path, last = path
    owner: Any = sys.modules[private.module]
    for name in path:
        owner = getattr(owner, name)
    in_object = not inspect.isclass(owner) and not inspect.ismodule(owner)
    if in_object and last not in vars(owner):
        owner = type(owner)  # a property
    return owner, last, special


# -- mutating -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """Torch's own: its functions by the names that they use, and who else has attributes. Looking
    for them takes half a second."""

    functions: Mapping[str, Sequence[types.FunctionType]]
    owners: Sequence[Any]

    @classmethod
    def found(cls) -> Code:
        wanted = {component(one)[1] for one in table().values() if loaded(one)}
        functions: dict[str, list[types.FunctionType]] = {name: [] for name in wanted}
        owners = []
        for one in _of_torch():
            if isinstance(one, types.FunctionType):
                for name in wanted & _names(one.__code__):
                    functions[name].append(one)
            else:
                owners.append(one)
        return cls(functions, owners)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


def mutate(private: Any, kind: str, code: Code) -> None:
    """Make torch as one in which this name has become that."""
    owner, name, _ = component(private)
    original = inspect.getattr_static(owner, name)
    fresh = f"{name}_of_later"
    _rename(name, fresh, code)
    _set(owner, fresh, original)
    if kind == "gone":
        _remove(owner, name)
    elif kind == "something else":
        _set(owner, name, "something else")
    elif kind == "raises":
        _set(owner, name, _raising(original))
    elif kind == "does nothing":
        _set(owner, name, _as_was(original, lambda *_args, **_more: None))
    elif kind == "a copy":
        _set(owner, name, _copying(original))
    elif kind == "other arguments":
        _other_arguments(owner, name, fresh, original)
    else:
        raise ValueError(kind)


def _rename(name: str, fresh: str, code: Code) -> None:
    """All of torch's own code uses the other name, and every other owner has it by both."""
    for function in code.functions[name]:
        function.__code__ = _renamed(function.__code__, name, fresh)
    for one in code.owners:
        if name in vars(one) and fresh not in vars(one):
            with contextlib.suppress(TypeError, AttributeError):
                setattr(one, fresh, inspect.getattr_static(one, name))


def _of_torch() -> Iterator[Any]:
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType):
            if str(one.__globals__.get("__name__")).partition(".")[0] == "torch":
                yield one
        elif isinstance(one, type | types.ModuleType):
            home = one.__module__ if isinstance(one, type) else one.__name__
            if str(home).partition(".")[0] == "torch":
                yield one


def _renamed(code: types.CodeType, name: str, fresh: str) -> types.CodeType:
    consts = tuple(
        _renamed(one, name, fresh) if isinstance(one, types.CodeType) else one
        for one in code.co_consts
    )
    names = tuple(fresh if one == name else one for one in code.co_names)
    if names == code.co_names and all(map(lambda a, b: a is b, consts, code.co_consts)):
        return code
    return code.replace(co_names=names, co_consts=consts)


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _remove(owner: Any, name: str) -> None:
    with contextlib.suppress(AttributeError):
        delattr(owner, name)
    if hasattr(owner, name) and inspect.isclass(owner):  # inherited
        _set(owner, name, property(_no_attribute))


def _no_attribute(_self: Any) -> Any:
    raise AttributeError("not in this torch")


def _raising(original: Any) -> Any:
    def raises(*_args: Any, **_more: Any) -> Any:
        raise NotImplementedError("not in this torch any more")

    if callable(original) or isinstance(original, staticmethod):
        return _as_was(original, raises)
    return property(raises)


def _as_was(original: Any, function: Callable[..., Any]) -> Any:
    """The function with the looks of the original."""
    with contextlib.suppress(ValueError, TypeError):
        function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    function.__doc__ = getattr(original, "__doc__", None)
    function.__name__ = getattr(original, "__name__", function.__name__)
    return staticmethod(function) if isinstance(original, staticmethod) else function


def _copying(original: Any) -> Any:
    if isinstance(original, property):
        return property(lambda self: dict(original.fget(self)))  # type: ignore[misc]
    return dict(original)


def _other_arguments(owner: Any, name: str, fresh: str, original: Any) -> None:
    """It needs one more argument in front, which torch's own code gives."""
    static = isinstance(original, staticmethod)
    context = object()

    if inspect.isclass(owner) and not static:

        def changed(self: Any, context: object, /, *, given: Any) -> Any:
            return original(self, *given[0], **given[1])

        def adapter(self: Any, *args: Any, **more: Any) -> Any:
            return getattr(self, name)(context, given=(args, more))

    else:

        def changed(context: object, /, *, given: Any) -> Any:  # type: ignore[misc]
            return original(*given[0], **given[1])

        def adapter(*args: Any, **more: Any) -> Any:  # type: ignore[misc]
            return getattr(owner, name)(context, given=(args, more))

    changed.__name__ = name
    _set(owner, name, staticmethod(changed) if static else changed)
    _set(owner, fresh, staticmethod(adapter) if static else adapter)


# -- running ------------------------------------------------------------------------------------


def drive(
    _number: int,
    _count: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Try the mutations that were asked for, each in a process of its own, and write down what came
    of them. Never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    end(lambda: _drive(Path(request["cwd"]), request["chosen"]))


def _drive(folder: Path, chosen: Sequence[int]) -> None:
    gc.unfreeze()
    found = mutations()
    results: dict[str, Any] = {"total": len(found), "tried": []}
    code = Code.found()
    gc.freeze()  # who is forked need not look through all that, which would have it copied
    known = _ran(folder, "plain", None)
    for number in chosen:
        if number >= len(found):
            break
        place = folder / str(number)
        place.mkdir()
        mutation = found[number]
        pid = forked(lambda where=place, what=mutation: _try(where, what, code, known))  # type: ignore[misc]
        _, status = os.waitpid(pid, 0)
        told = {"mutation": mutation, "status": status}
        with contextlib.suppress(OSError, ValueError):
            told |= json.loads((place / "result.json").read_text())
        results["tried"].append(told)
    (folder / "results.json").write_text(json.dumps(results))


def _try(place: Path, mutation: Mutation, code: Code, known: Sequence[Sequence[Any]]) -> None:
    """`known`: what the program comes to on torch as it is."""
    names = table()
    done = set()
    for name, kind in mutation:
        _owner, attribute, _ = component(names[name])
        if attribute not in done:  # one that another has not changed already
            done.add(attribute)
            mutate(names[name], kind, code)
    unlike = [
        part.name for part in parts() if any(loaded(one) and one.unlike() for one in part.needs)
    ]
    directory = RunDirectory.create(explicit=place / "run")
    observed = _ran(place, "observed", directory.path)
    # Where it is as ever, it need not be asked whether that torch itself works.
    alike = all(ours[:2] == its[:2] for ours, its in zip(observed, known, strict=True))
    plain = known if alike else _ran(place, "plain", None)
    records = Records(directory.ranks)
    records.look()
    ranks = newest_ranks(records.snapshots())
    result = {"off": off.of_ranks(ranks), "seen": len(ranks), "unlike": unlike}
    result |= {"plain": plain, "observed": observed}
    (place / "result.json").write_text(json.dumps(result))


def _ran(place: Path, mode: str, directory: Path | None) -> Sequence[Sequence[Any]]:
    """Each rank's exit code, and what it printed and complained of."""
    pids = {
        forked(lambda r=rank: _rank(place, mode, r, directory)): rank  # type: ignore[misc]
        for rank in range(RANKS)
    }
    codes: dict[int, int] = {}
    until_s = time.monotonic() + LIMIT_S
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            if time.monotonic() > until_s:
                for left in pids:
                    os.kill(left, signal.SIGKILL)
                until_s += LIMIT_S
            time.sleep(0.01)
            continue
        if pid in pids:
            codes[pids.pop(pid)] = os.waitstatus_to_exitcode(status)
    return [
        [codes[rank], _text(place, mode, rank, "out"), _text(place, mode, rank, "err")]
        for rank in range(RANKS)
    ]


def _text(place: Path, mode: str, rank: int, stream: str) -> str:
    return (place / f"{mode}.{rank}.{stream}").read_text(errors="replace")


def _rank(place: Path, mode: str, rank: int, directory: Path | None) -> None:
    for descriptor, stream in ((1, "out"), (2, "err")):
        path = place / f"{mode}.{rank}.{stream}"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    import torch

    torch.set_num_threads(1)
    if directory is not None:
        os.environ |= {
            "DISTDEBUG_RUN_DIR": str(directory),
            "DISTDEBUG_RUN_STARTED": f"{time.time():.3f}",
            "DISTDEBUG_REDIRECT": "0",
            "DISTDEBUG_LEVEL": "DETAIL",
            "DISTDEBUG_CHECK": "nan,replicas,inflight",
        }
        os.environ.pop("DISTDEBUG_RAISE_OWN_FAULTS", None)
        hook_by_hand.run()
        finder, hook = forked_program.hook_of_this_process()
        sys.meta_path.remove(finder)
        forked_program.become(rank, rank, finder, hook, torch)
    sys.argv = [str(SCRIPT), str(place / f"{mode}.store")]
    runpy.run_path(str(SCRIPT), run_name="__main__")
