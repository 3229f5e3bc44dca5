"""A fault, written and read again, is the same fault; plans from files and seeds are such."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdebug.faults import plan_file, random_plan
from distdebug.faults.actions import ACTIONS, Action, Argument, Kind, Target
from distdebug.faults.plan import Fault, Moment, Plan, When
from distdebug.faults.spec import REDUCE_OPS, SpecError, parse
from distdebug.record.ops import OPS
from distdebug.record.safe_text import clean
from distdebug.record.signature import DTYPES

from .test_spec import ACTIONS_READ, WRONG
from .writing import written

WORLD = 8
RANKS = st.integers(0, WORLD - 1)
TEXTS = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" \n\t"), min_size=1)
SECONDS = st.floats(1e-6, 1e6) | st.sampled_from([0.005, 0.2, 1.0, 250.0])
SIZES = st.integers(0, 1 << 31)
CROWDED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def same(fault: Fault) -> Fault:
    return replace(parse(written(fault), fault.number, WORLD), text=fault.text)


@pytest.mark.parametrize("text", [text for text, *_ in ACTIONS_READ])
def test_what_was_read_is_written_alike(text: str) -> None:
    fault = parse(text, world_size=WORLD)
    assert same(fault) == fault


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    """Any fault of which its action's row allows each part."""
    action = ACTIONS[draw(st.sampled_from(sorted(ACTIONS)))]
    ranks, arguments = _whom(draw, action)
    for argument in action.arguments if action.target is Target.RANKS else ():
        arguments[argument.key] = draw(_values(argument, arguments))
    if arguments.get("in") == "data":
        arguments["name"] = None
    if action.target is Target.LINK:
        what = draw(st.sampled_from(action.arguments[0].choices))
        arguments["what"] = what
        if what == "delay":
            arguments["delay_s"] = draw(SECONDS)
        if what == "rate":
            arguments["bytes_per_s"] = draw(st.floats(1e-3, 1e12))
    return Fault(
        draw(st.integers(0, 99)), "", action.name, ranks, draw(_moments(action)), arguments
    )


def _whom(draw: st.DrawFn, action: Action) -> tuple[tuple[int, ...], dict[str, Any]]:
    ranks = draw(st.lists(RANKS, min_size=2, max_size=WORLD, unique=True))
    match action.target:
        case Target.RANKS:
            return tuple(sorted(ranks[draw(st.integers(0, 1)) :])), {}
        case Target.LINK:
            pairs = [ranks[:2], ranks[1::-1]][: draw(st.integers(1, 2))]
            return tuple(sorted(one for one, _ in pairs)), {"pairs": pairs}
        case Target.SIDES:
            cut = draw(st.integers(1, len(ranks) - 1))
            return tuple(sorted(ranks)), {"sides": [sorted(ranks[:cut]), sorted(ranks[cut:])]}


def _values(argument: Argument, before: dict[str, Any]) -> st.SearchStrategy[Any]:
    match argument.kind:
        case Kind.CHOICE | Kind.SIGNAL:
            return st.sampled_from(argument.choices)
        case Kind.INT:
            return st.integers(argument.low, argument.high)
        case Kind.SECONDS:
            return SECONDS
        case Kind.ERROR:
            messages = TEXTS.map(str.strip).filter(bool)
            return st.just("KeyError") | messages.map(lambda text: f"ValueError: {text}")
        case Kind.RANK:
            return RANKS
        case Kind.TEXT:
            return st.none() | TEXTS
        case _:
            to: dict[str, st.SearchStrategy[Any]] = {
                "shape": st.lists(SIZES, max_size=64),
                "split": st.lists(SIZES, max_size=9),
                "dtype": st.sampled_from([*DTYPES]),
                "reduce_op": st.sampled_from(REDUCE_OPS),
                "root": RANKS,
                "peer": RANKS,
                "tag": SIZES,
                "group": TEXTS,
            }
            return st.none() | to[before["what"]]


@st.composite
def _moments(draw: st.DrawFn, action: Action) -> Moment:
    when = draw(st.sampled_from(sorted(action.moments, key=lambda one: one.value)))
    if when is When.TIME:
        for_s = draw(st.none() | SECONDS) if action.lasts else None
        return Moment(when, at_s=draw(st.just(0.0) | SECONDS), for_s=for_s)
    op = ""
    if when is When.OP:
        unfit = {"barrier", "monitored_barrier", "recv"}
        # What a change fits is `test_spec`'s; here it is about the form.
        op = draw(st.sampled_from([one for one in OPS if one not in unfit]))
        if action.name == "change":
            when, op = When.CALL, ""
    group = draw(st.just("") | TEXTS) if when is When.SEQ else ""
    if action.every and when in (When.OP, When.CALL) and draw(st.booleans()):
        return Moment(when, op, "", 0, None, draw(st.integers(2, 99)))
    first = draw(st.integers(0, 1 << 30))
    last = draw(st.none() | st.integers(first, 1 << 31))
    return Moment(when, op, group, first, last)


@CROWDED
@given(faults())
def test_any_fault_is_read_as_it_was_written(fault: Fault) -> None:
    assert same(fault) == fault
    assert Plan.from_json(Plan((fault,)).to_json()).faults[0] == fault


@CROWDED
@given(st.text() | st.from_regex(r"[a-z]{4}\(rank=\d.*\) @ .*", fullmatch=True))
def test_any_text_is_a_fault_or_told_to_be_none(text: str) -> None:
    wrong: SpecError | None = None
    try:
        fault = parse(text, world_size=WORLD)
    except SpecError as error:
        wrong = error
    if wrong is None:
        assert same(fault) == fault
    else:
        assert 0 <= wrong.start <= wrong.end <= len(text)
        assert all(clean(line) == line for line in (str(wrong), *wrong.below))


@pytest.mark.parametrize("backend", [None, "gloo", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_drawn_faults_are_what_their_specs_say(backend: str | None, world_size: int) -> None:
    for seed in range(20):
        drawn = random_plan.draw(10, seed, world_size, backend, first=3)
        again = [
            parse(fault.text, 3 + number, world_size, backend) for number, fault in enumerate(drawn)
        ]
        assert drawn == again
        assert drawn == random_plan.draw(10, seed, world_size, backend, first=3)
    assert drawn != random_plan.draw(10, 999, world_size, backend, first=3)


def test_links_are_drawn_only_where_they_work() -> None:
    def actions(backend: str | None, world_size: int) -> set[str]:
        return {fault.action for fault in random_plan.draw(500, 1, world_size, backend)}

    drawn = set(ACTIONS) - {"hold"}  # which waits for a certain call
    assert actions("tcp", 2) == drawn
    for backend, world_size in ((None, 2), ("gloo", 2), ("tcp", 1)):
        assert actions(backend, world_size) == drawn - {"link", "partition"}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_file(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        """
        seed = 7
        [[fault]]
        spec = "kill(rank=1) @ all_reduce#5"
        [[fault]]
        spec = 'raise(rank=[0,2], "ValueError: (bad)") @ step 3'
        """,
    )
    found, seed = plan_file.read(path, 4)
    assert seed == 7
    specs = ["kill(rank=1) @ all_reduce#5", 'raise(rank=[0,2], "ValueError: (bad)") @ step 3']
    assert found == [parse(spec, number, 4) for number, spec in enumerate(specs)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it has no [[fault]]"),
        ("seed = 7", "it has no [[fault]]"),
        ("seed = 'x'\n[[fault]]\nspec = 'kill(rank=1)'", "its seed is a whole number"),
        ("sede = 7", "but no 'sede'; did you mean seed?"),
        ("[fault]\nspec = 'kill(rank=1)'", "two brackets"),
        ("[[fault]]\nrank = 1", "number 1 has to have a spec"),
        ("[[fault]]\nspec = 'kill(rank=1)'\nrank = 2", "and nothing else"),
        ("[[fault", "it is not TOML"),
        ("fault = 'kill(rank=1)'", "two brackets"),
        ("fault = [3]", "number 1 has to have a spec"),
    ],
)
def test_a_wrong_plan_file(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        plan_file.read(_file(tmp_path, text))
    assert not isinstance(caught.value, SpecError)


def test_a_wrong_fault_in_a_plan_file_is_shown_with_a_caret(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        plan_file.read(_file(tmp_path, "[[fault]]\nspec = 'kil(rank=1)'"), 4)
    assert caught.value.below[0] == "  kil(rank=1)"
    assert "^" in caught.value.below[1]


def test_the_wrong_ones_are_wrong_for_a_reason_of_their_own() -> None:
    assert len({text for text, *_ in WRONG}) == len(WRONG)
