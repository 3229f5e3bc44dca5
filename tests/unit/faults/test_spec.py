"""Specs: every action, every moment, and what is said of a wrong one, with its caret."""

from __future__ import annotations

from typing import Any

import pytest

from distdebug.faults.actions import ACTIONS, CHANGES, LINK_FAULTS, SIGNALS, exception_of
from distdebug.faults.plan import Fault, Moment, Plan, When
from distdebug.faults.spec import SpecError, parse, usage

FIRST_CALL = Moment(When.CALL)
DATA = {"in": "data", "name": None}

ACTIONS_READ: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
    ("kill(rank=1)", "kill", (1,), {"signal": "KILL"}),
    ("kill(rank=1, signal=SIGSEGV)", "kill", (1,), {"signal": "SEGV"}),
    ("kill(signal=stop, rank=[3,1])", "kill", (1, 3), {"signal": "STOP"}),
    ("kill(rank=all)", "kill", (0, 1, 2, 3), {"signal": "KILL"}),
    ('kill(rank={3,1}, "SEGV")', "kill", (1, 3), {"signal": "SEGV"}),
    ("kill(STOP, rank=1..3)", "kill", (1, 2, 3), {"signal": "STOP"}),
    ("hang(rank=0, native)", "hang", (0,), {"how": "native"}),
    ("nan(rank=0, parameter)", "nan", (0,), {"in": "parameter", "name": None}),
    ("change(rank=1, dtype=torch.int64)", "change", (1,), {"what": "dtype", "to": "int64"}),
    ("change(rank=1, shape=[2,3])", "change", (1,), {"what": "shape", "to": [2, 3]}),
    ("change(rank=1, reduce_op, to=MAX)", "change", (1,), {"what": "reduce_op", "to": "max"}),
    ("exit(rank=0)", "exit", (0,), {"code": 0}),
    ("exit(rank=0, code=255)", "exit", (0,), {"code": 255}),
    ("raise(rank=2)", "raise", (2,), {"error": "RuntimeError: injected fault"}),
    (
        'raise(rank=2, "ValueError: bad, (sample)")',
        "raise",
        (2,),
        {"error": "ValueError: bad, (sample)"},
    ),
    ("raise('KeyError:\\n\\'x\\'', rank=2)", "raise", (2,), {"error": "KeyError: 'x'"}),
    ("raise(rank=2, error=KeyboardInterrupt)", "raise", (2,), {"error": "KeyboardInterrupt"}),
    ("hang(rank=0)", "hang", (0,), {"how": "sleep"}),
    ("hang(rank=0, how=native)", "hang", (0,), {"how": "native"}),
    ("oom(rank=0)", "oom", (0,), {"how": "allocation"}),
    ("oom(rank=0, how=killer)", "oom", (0,), {"how": "killer"}),
    ("fork(rank=0)", "fork", (0,), {}),
    ("fill-disk(rank=0)", "fill-disk", (0,), {}),
    ("drop-store(rank=0)", "drop-store", (0,), {}),
    ("finish(rank=3)", "finish", (3,), {}),
    ("skip(rank=3)", "skip", (3,), {}),
    ("duplicate(rank=3)", "duplicate", (3,), {}),
    ("reorder(rank=3)", "reorder", (3,), {}),
    ("change(rank=1, shape)", "change", (1,), {"what": "shape", "to": None}),
    ("change(rank=1, shape, to=[2,3])", "change", (1,), {"what": "shape", "to": [2, 3]}),
    ("change(to=8, rank=1, what=split)", "change", (1,), {"what": "split", "to": [8]}),
    ("change(rank=1, dtype, to=int64)", "change", (1,), {"what": "dtype", "to": "int64"}),
    ("change(rank=1, reduce_op, to=max)", "change", (1,), {"what": "reduce_op", "to": "max"}),
    ("change(rank=1, root, to=3)", "change", (1,), {"what": "root", "to": 3}),
    ("change(rank=1, peer, to=0)", "change", (1,), {"what": "peer", "to": 0}),
    ("change(rank=1, tag, to=7)", "change", (1,), {"what": "tag", "to": 7}),
    ("change(rank=1, group, to=mesh.x)", "change", (1,), {"what": "group", "to": "mesh.x"}),
    ("change(rank=1, group, to='a b')", "change", (1,), {"what": "group", "to": "a b"}),
    ("nan(rank=0)", "nan", (0,), DATA),
    ("inf(rank=0, in=data)", "inf", (0,), DATA),
    (
        "nan(rank=0, in=parameter, name=net.0.weight)",
        "nan",
        (0,),
        {"in": "parameter", "name": "net.0.weight"},
    ),
    ("bitflip(rank=0)", "bitflip", (0,), {"bit": 22, **DATA}),
    ("bitflip(rank=0, bit=63)", "bitflip", (0,), {"bit": 63, **DATA}),
    ("link(0->1, drop)", "link", (0,), {"pairs": [[0, 1]], "what": "drop"}),
    ("link(3<->1, reset)", "link", (1, 3), {"pairs": [[3, 1], [1, 3]], "what": "reset"}),
    (
        "link(0->1, delay=5ms)",
        "link",
        (0,),
        {"pairs": [[0, 1]], "what": "delay", "delay_s": 0.005},
    ),
    ("link(0->1, rate=2M)", "link", (0,), {"pairs": [[0, 1]], "what": "rate", "bytes_per_s": 2e6}),
    (
        "link(0->1, what=rate, rate=1.5k)",
        "link",
        (0,),
        {"pairs": [[0, 1]], "what": "rate", "bytes_per_s": 1500.0},
    ),
    ("partition({1,0}|{2,3})", "partition", (0, 1, 2, 3), {"sides": [[0, 1], [2, 3]]}),
    ("partition({0}|{2}|{3})", "partition", (0, 2, 3), {"sides": [[0], [2], [3]]}),
    ("delay(rank=3, 200ms)", "delay", (3,), {"delay_s": 0.2}),
    ("delay(rank=3, delay=1.5s)", "delay", (3,), {"delay_s": 1.5}),
    ("hold(rank=3, until=0, call=2) @ call 1", "hold", (3,), {"until": 0, "call": 2}),
]


@pytest.mark.parametrize(("text", "action", "ranks", "arguments"), ACTIONS_READ)
def test_actions(text: str, action: str, ranks: tuple[int, ...], arguments: dict[str, Any]) -> None:
    fault = parse(text, 5, world_size=4)
    assert (fault.number, fault.text) == (5, text)
    assert (fault.action, fault.ranks, fault.arguments) == (action, ranks, arguments)
    assert Plan.from_json(Plan((fault,), 3).to_json()) == Plan((fault,), 3)


def test_no_action_and_no_choice_is_left_out_here() -> None:
    read = [parse(text, world_size=4) for text, *_ in ACTIONS_READ]
    assert {fault.action for fault in read} == set(ACTIONS)
    for what in LINK_FAULTS:
        measure = {"delay": "delay=1s", "rate": "rate=1"}.get(what, what)
        assert parse(f"link(0->1, {measure})").arguments["what"] == what
    for signal in SIGNALS:
        assert parse(f"kill(rank=0, signal={signal})").arguments == {"signal": signal}
    assert {fault.arguments["what"] for fault in read if fault.action == "change"} == set(CHANGES)


@pytest.mark.parametrize("name", list(ACTIONS))
def test_what_the_usage_says_is_read(name: str) -> None:
    text = usage(ACTIONS[name]).replace("N", "1")
    for some in ("KILL|SEGV", "sleep|lock", "allocation|", "data|", "shape|dtype", "drop|delay"):
        if some in text:
            start = text.index(some)
            end = start + len(text[start:].split(",")[0].split(")")[0])
            text = text[:start] + some.split("|")[0] + text[end:]
    text = text.replace(", name=TEXT", "").replace(", to=VALUE", "")
    assert parse(text).action == name


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("kill(rank=1)", FIRST_CALL),
        ("kill(rank=1) @ all_reduce#5", Moment(When.OP, "all_reduce", first=5, last=5)),
        ("kill(rank=1)@all_reduce#0", Moment(When.OP, "all_reduce")),
        ("kill(rank=1) @ all_reduce", Moment(When.OP, "all_reduce")),
        ("kill(rank=1) @ _all_gather_base#1", Moment(When.OP, "all_gather_into_tensor", "", 1, 1)),
        ("kill(rank=1) @ irecv", Moment(When.OP, "recv")),
        ("skip(rank=1) @ all_reduce#2..5", Moment(When.OP, "all_reduce", first=2, last=5)),
        ("skip(rank=1) @ all_reduce#2..", Moment(When.OP, "all_reduce", first=2, last=None)),
        ("kill(rank=1) @ call 40", Moment(When.CALL, first=40, last=40)),
        ("kill(rank=1) @ seq 7", Moment(When.SEQ, first=7, last=7)),
        ("kill(rank=1) @ seq 7 of default_pg", Moment(When.SEQ, "", "default_pg", 7, 7)),
        ("kill(rank=1) @ seq 7..9 of 0", Moment(When.SEQ, "", "0", 7, 9)),
        ('kill(rank=1) @ seq 7 of "data parallel"', Moment(When.SEQ, "", "data parallel", 7, 7)),
        ("kill(rank=1) @ step 3", Moment(When.STEP, first=3, last=3)),
        ("kill(rank=1) @ step#3", Moment(When.STEP, first=3, last=3)),
        ("kill(rank=1) @ call #40", Moment(When.CALL, first=40, last=40)),
        ("kill(rank=1) @ 3s", Moment(When.TIME, at_s=3.0)),
        ("kill(rank=1) @ 0s", Moment(When.TIME)),
        ("kill(rank=1) @ 250ms", Moment(When.TIME, at_s=0.25)),
        ("delay(rank=1, 1s) @ 3s for 2s", Moment(When.TIME, at_s=3.0, for_s=2.0)),
        ("delay(rank=1, 1s)", Moment(When.CALL, last=None)),
        ("delay(rank=1, 1s) @ all_reduce", Moment(When.OP, "all_reduce", last=None)),
        ("delay(rank=1, 1s) @ all_reduce#4", Moment(When.OP, "all_reduce", first=4, last=4)),
        ("delay(rank=1, 1s, every=1..10)", Moment(When.CALL, first=1, last=10)),
        (
            "delay(rank=1, 1s, every=1..10) @ all_reduce",
            Moment(When.OP, "all_reduce", first=1, last=10),
        ),
        (
            "nan(rank=1, every=3) @ all_reduce",
            Moment(When.OP, "all_reduce", last=None, stride=3),
        ),
        ("link(0->1, drop)", Moment(When.FRAME, last=None)),
        ("link(0->1, drop) @ frame 100..200", Moment(When.FRAME, first=100, last=200)),
        ("link(0->1, drop) @ frame 9", Moment(When.FRAME, first=9, last=9)),
        ("partition({0}|{1})", Moment(When.FRAME, last=None)),
        ("partition({0}|{1}) @ 3s", Moment(When.TIME, at_s=3.0)),
        ("partition({0}|{1}) @ 3s for 250ms", Moment(When.TIME, at_s=3.0, for_s=0.25)),
    ],
)
def test_moments(text: str, moment: Moment) -> None:
    assert parse(text).moment == moment


WRONG = [
    # The spec, with the wrong words in the caret's place; the sentence; what is possible.
    ("", "", "the fault is empty", ""),
    ("kil(rank=1)", "kil", "there is no action kil; did you mean kill?", "actions: kill, exit"),
    ("boom", "boom", "there is no action boom", "drop-store, delay, hold, finish, skip"),
    ("5(rank=1)", "5", "begins with its action", "actions:"),
    ("kill", "kill", "whom? kill needs a rank", "write kill(rank=N, signal=KILL|"),
    ("kill()", ")", "whom?", "write kill("),
    ("kill(1)", "1", "whose? write rank=1", "write kill("),
    ("kill(rank=4)", "4", "there is no rank 4: this run has ranks 0 to 3", ""),
    ("kill(rank=[0,9])", "9", "there is no rank 9", ""),
    ("kill(rank=-1)", "-1", "a rank is a whole number from 0 on", ""),
    ("kill(rank=99999999999999999999)", "9" * 20, "there is no rank 999", ""),
    ("kill(rank=1.5)", "1.5", "a rank is a whole number", ""),
    ("kill(rank=one)", "one", "a rank is a whole number", ""),
    ("kill(rank=3..1)", "3..1", "from 3 to 1 there are no ranks", ""),
    ("kill(rank=1..4)", "4", "there is no rank 4", ""),
    ("kill(rank={1,9})", "9", "there is no rank 9", ""),
    ("kill(rank={1,2)", ")", "the list is not closed; a } is missing", ""),
    ("kill(rank=[])", "[]", "no rank is in the list", ""),
    ("kill(rank=[1", "", "the list is not closed", ""),
    ("kill(rank=1, rank=2)", "rank", "rank is given twice", ""),
    ("kill(rank=1, sgnal=SEGV)", "sgnal", "takes no sgnal; did you mean signal?", "write kill"),
    ("kill(rank=1, signal=SEGX)", "SEGX", "cannot be 'SEGX'; did you mean SEGV?", "KILL, SEGV"),
    ("kill(rank=1, signal=9)", "9", "signal cannot be '9'", "signal: KILL"),
    ("kill(rank=1, signal=)", ")", "a value is missing", ""),
    ("kill(rank=1, STOOP)", "STOOP", "takes no further value without a name", "write kill"),
    ("kill(rank=1, signal=KILL, STOP)", "STOP", "no further value without a name", "write kill"),
    ("change(rank=1, dtype, root=2)", "root", "change takes no root", "write change("),
    ("kill(rank=1", "", "a comma or the closing bracket is missing", ""),
    ("kill(rank=1 signal=STOP)", "signal", "a comma or the closing bracket", ""),
    ("kill(rank=1))", ")", "nothing more is expected here", ""),
    ("kill(rank=1) all_reduce#5", "all_reduce", "a moment begins with @", ""),
    ("kill(rank=1); kill(rank=2)", ";", "one fault for each --inject", ""),
    ("kill(rank=1) @", "", "the moment is missing", "moments of kill: all_reduce,"),
    ("kill(rank=1) @ all_redcue#5", "all_redcue", "did you mean all_reduce?", "ops: all_reduce, "),
    ("kill(rank=1) @ setp 5", "setp", "did you mean step?", "step 3"),
    ("kill(rank=1) @ all_reduce#", "", "the number of an all_reduce is a whole number", ""),
    ("kill(rank=1) @ all_reduce#-1", "-1", "is a whole number from 0 on", ""),
    ("kill(rank=1) @ all_reduce#9..2", "9..2", "from 9 to 2 there is none", ""),
    ("kill(rank=1) @ all_reduce#5 6", "6", "nothing more is expected", ""),
    ("kill(rank=1) @ call", "", "the number of a call is a whole number", ""),
    ("kill(rank=1) @ call 1e3", "1e3", "the number of a call is a whole number", ""),
    ("kill(rank=1) @ seq 5 of", "", "name or description of a group is missing", ""),
    ("kill(rank=1) @ frame 5", "frame", "kill does not happen at a frame", "moments of kill"),
    ("kill(rank=1) @ 3", "3", "with its unit: 3s or 3ms", ""),
    ("kill(rank=1) @ 3min", "3min", "a time such as 200ms or 3s", ""),
    ("kill(rank=1) @ 3s for 2s", "for", "it has no duration", ""),
    ("link(0->1, drop) @ 3s for 0s", "0s", "a duration is above 0", ""),
    ("link(0->1, drop) @ 3s for", "", "a duration is a time such as", ""),
    ("exit(rank=1, code=256)", "256", "code is a whole number from 0 to 255", ""),
    ("exit(rank=1, code=x)", "x", "code is a whole number from 0 to 255", ""),
    ("exit(rank=1, code=[1,2])", "[1,2]", "code is one value", ""),
    ("exit(rank=1, code=1, code=2)", "code", "code is given twice", ""),
    ('raise(rank=1, "ValueErorr: x")', '"ValueErorr: x"', "did you mean ValueError?", "raise(rank"),
    ('raise(rank=1, "print: x")', '"print: x"', "Python has no exception 'print'", ""),
    ('raise(rank=1, "UnicodeDecodeError: x")', '"UnicodeDecodeError: x"', "no exception", ""),
    ('raise(rank=1, "x)', '"', "has no other one that ends the text", ""),
    ("raise(rank=1, 'a\x1bb')", "\x1b", "a control character", ""),
    ("hang(rank=1, how=forever)", "forever", "how cannot be 'forever'", "sleep, lock, gil, native"),
    ("delay(rank=1)", ")", "delay needs a time", "write delay(rank=N, 200ms)"),
    ("delay(rank=1, 200)", "200", "with its unit: 200s or 200ms", ""),
    ("delay(rank=1, -1s)", "-1s", "delay is a time", ""),
    ("delay(rank=1, 0s)", "0s", "delay is above 0", ""),
    ("delay(rank=1, 1e99s)", "1e99s", "at most 1000000 s", ""),
    ("delay(rank=1, 1s, every=0)", "0", "such as 1..10, or 3 for each third", ""),
    ("delay(rank=1, 1s, every=x)", "x", "such as 1..10, or 3 for each third", ""),
    ("delay(rank=1, 1s, every=9..2)", "9..2", "from 9 to 2 there is none", ""),
    ("delay(rank=1, 1s, every=9..)", ")", "the range has no end", ""),
    ("delay(rank=1, 1s, every=1, every=2)", "every", "every is given twice", ""),
    ("delay(rank=1, 1s, every=3) @ all_reduce#4", "3", "names its calls already", ""),
    ("kill(rank=1, every=3)", "every", "kill takes no every", ""),
    ("change(rank=1)", ")", "change needs to know what: shape, dtype", "write change("),
    ("change(rank=1, colour)", "colour", "what cannot be 'colour'", "shape, dtype"),
    ("change(rank=1, shape, to=x)", "x", "a size in a shape is a whole number", ""),
    ("change(rank=1, shape, to=1..2)", "1..2", "a shape is a list", ""),
    ("change(rank=1, dtype, to=flot32)", "flot32", "did you mean float32?", "float64, float32"),
    ("change(rank=1, dtype, to=[1])", "[1]", "a dtype is one value", ""),
    ("change(rank=1, reduce_op, to=mean)", "mean", "a reduce op cannot be 'mean'", "sum, avg"),
    ("change(rank=1, root, to=4)", "4", "there is no rank 4", ""),
    ("change(rank=1, tag, to=x)", "x", "a tag is a whole number", ""),
    ('change(rank=1, group, to="")', '""', "a group is empty", ""),
    ("change(rank=1, root) @ all_reduce#5", "all_reduce", "all_reduce has no root", "broadcast, "),
    ("change(rank=1, reduce_op) @ broadcast", "broadcast", "no reduce op", "all_reduce, "),
    ("change(rank=1, split) @ all_gather", "all_gather", "no list of splits", "all_to_all_single"),
    ("change(rank=1, tag) @ all_gather", "all_gather", "has no tag", "send, recv"),
    ("change(rank=1, shape) @ barrier", "barrier", "barrier has no shape", "all_reduce"),
    ("nan(rank=1) @ barrier", "barrier", "contributes no data to barrier", "ops with data"),
    ("nan(rank=1) @ recv", "recv", "contributes no data to recv", "send"),
    ("nan(rank=1, name=w)", "w", "goes with in=parameter", ""),
    ("bitflip(rank=1, bit=64)", "64", "bit is a whole number from 0 to 63", ""),
    ("link(rank=1, drop)", "rank", "link takes no rank", "write link(0->1, drop|delay=5ms"),
    ("link(drop)", ")", "which link? such as 0->1", "write link"),
    ("link(0->1)", ")", "link needs to know what: drop, delay", "write link"),
    ("link(0->0, drop)", "0", "a rank has no link to itself", ""),
    ("link(0->4, drop)", "4", "there is no rank 4", ""),
    ("link(0->, drop)", ",", "a rank is a whole number", ""),
    ("link(0->1, 1->2, drop)", "1", "one link for each fault", ""),
    ("link(0->1, dely=5ms)", "dely", "did you mean delay?", "write link"),
    ("link(0->1, explode)", "explode", "what cannot be 'explode'", "drop, delay, rate"),
    ("link(0->1, delay)", "delay", "by how much? write delay=5ms", ""),
    ("link(0->1, rate)", "rate", "by how much? write rate=2M", ""),
    ("link(0->1, drop, delay=5ms)", "5ms", "drop or delay=5ms", ""),
    ("link(0->1, delay=5ms, rate=2M)", "2M", "delay or rate=2M", ""),
    ("link(0->1, rate=2X)", "2X", "bytes per second, such as 500k", ""),
    ("link(0->1, rate=0)", "0", "rate is above 0", ""),
    ("link(0->1, drop) @ all_reduce#5", "all_reduce", "does not happen at a call", "frame 100"),
    ("link(0->1, drop) @ step 5", "step", "does not happen at a step", "3s for 2s"),
    ("kill(0->1)", "0", "kill is not about a link", "write kill"),
    ("kill({0}|{1})", "{", "kill has no sides", "write kill"),
    ("partition()", ")", "which sides? such as {0,1}|{2,3}", "write partition"),
    ("partition({0,1})", ")", "a partition has two sides", ""),
    ("partition({0,1}|)", ")", "a side is missing", ""),
    ("partition({}|{1})", "}", "a rank is a whole number", ""),
    ("partition({0,1|{2})", "|", "a comma or the closing } is missing", ""),
    ("partition({0,1}|{1,2})", "1", "rank 1 stands in it twice", ""),
    ("partition({0}|{7})", "7", "there is no rank 7", ""),
    ("partition({0}|{1}, {2}|{3})", "{", "one partition for each fault", ""),
    ("kill(rank=1) @ all_reduce ? 5", "?", "'?' means nothing here", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "sentence", "possible"), WRONG)
def test_wrong_specs(text: str, words: str, sentence: str, possible: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, world_size=4)
    error = caught.value
    assert sentence in str(error)
    assert text[error.start : error.end] == words
    shown, caret, *more = error.below
    assert shown.startswith("  ")
    assert caret.strip(" ") == "^" * len(caret.strip(" ")) != ""
    if text.isprintable():
        assert shown == f"  {text}"
        assert caret == "  " + " " * error.start + "^" * max(1, len(words))
    assert possible in "\n".join(more)
    assert bool(possible) <= bool(more)
    assert all(line.isprintable() for line in (str(error), *error.below))


def test_a_caret_stands_under_what_a_terminal_shows() -> None:
    with pytest.raises(SpecError) as caught:
        parse('raise(rank=1, "ValueError: 日本\u200b") @ setp 5')
    shown, caret, *_ = caught.value.below
    assert "\\u200b" in shown
    assert caret == "  " + " " * 31 + "^^^^^^"
    with pytest.raises(SpecError) as caught:
        parse('raise(rank=1, "ValueError: 日本") @ setp 5')
    assert caught.value.below[1] == "  " + " " * 36 + "^^^^"


def test_a_rank_that_nobody_can_know_of_is_taken() -> None:
    assert parse("kill(rank=77)").ranks == (77,)
    with pytest.raises(SpecError, match="not known before the command runs"):
        parse("kill(rank=all)")
    with pytest.raises(SpecError, match="this run has rank 0 alone"):
        parse("kill(rank=1)", world_size=1)


def test_what_cannot_work_on_the_backend() -> None:
    assert parse("link(0->1, drop)", backend="tcp").action == "link"
    assert parse("kill(rank=1)", backend="gloo").action == "kill"
    for text in ("link(0->1, drop)", "partition({0}|{1})"):
        with pytest.raises(SpecError, match="works on tcp, and not on gloo") as caught:
            parse(text, backend="gloo")
        assert caught.value.start == 0


def test_the_parts_of_an_exception() -> None:
    assert exception_of("ValueError: a: b") == ("ValueError", "a: b")
    assert exception_of("KeyboardInterrupt") == ("KeyboardInterrupt", "")


def test_covered_numbers() -> None:
    each_third = parse("nan(rank=1, every=3)").moment
    assert [n for n in range(8) if each_third.covers(n)] == [0, 3, 6]
    some = parse("skip(rank=1) @ all_reduce#2..4").moment
    assert [n for n in range(8) if some.covers(n)] == [2, 3, 4]
    assert isinstance(parse("kill(rank=1)"), Fault)
