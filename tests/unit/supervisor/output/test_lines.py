"""What the ranks print arrives in whole lines, with the rank's name, and harmless."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from distdebug.supervisor.output import lines as output
from distdebug.supervisor.output.follower import OutputFollower
from distdebug.supervisor.output.lines import Display, colour_wanted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for the monotonic clock, so that nothing has to sleep."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


class Run:
    """Ranks that print, and two captured streams."""

    def __init__(self, terminal: bool = False) -> None:
        kind = Terminal if terminal else io.StringIO
        self.out, self.err = kind(), kind()
        self.display = Display(self.out, self.err)

    def write(self, name: str, data: bytes) -> None:
        rank, _, stream = name.partition(".")
        self.display.take(int(rank), stream, data)

    def printed(self) -> str:
        self.display.poll()
        return self.out.getvalue()


def test_whole_lines_with_the_rank(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"hello\nwor")
    run.write("12.out", b"\n")
    run.write("1.err", b"Traceback\n")
    assert run.printed() == "[rank 0] hello\n[rank 12] \n"
    assert run.err.getvalue() == "[rank 1] Traceback\n"
    run.write("0.out", b"ld\n")
    assert run.printed() == "[rank 0] hello\n[rank 12] \n[rank 0] world\n"


def test_hostile_lines_are_harmless(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"\x1b]0;x\x07\x1b[2Jhi \xff\xe2\x80\xae\n\x1b[31mred\x1b[0m\n")
    assert run.printed() == ("[rank 0] \\x1b]0;x\\x07\\x1b[2Jhi \\xff\\u202e\n[rank 0] red\n")


def test_a_prompt_is_shown_when_it_rests_and_its_end_follows(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"(Pdb) ")
    assert run.printed() == ""
    clock.now_s += 0.6
    assert run.printed() == "[rank 0] (Pdb) "
    clock.now_s += 0.6
    assert run.printed() == "[rank 0] (Pdb) ", "once"
    run.write("0.out", b"3\nnext\n")
    assert run.printed() == "[rank 0] (Pdb) 3\n[rank 0] next\n"


def test_another_rank_does_not_write_into_an_unfinished_line(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"working...")
    run.printed()
    clock.now_s += 0.6
    run.printed()
    run.write("0.out", b" done\n")
    run.write("1.out", b"hi\n")
    run.printed()
    assert sorted(run.printed().splitlines()) == [
        "[rank 0] working... done",
        "[rank 1] hi",
    ]
    run.write("0.out", b"again...")
    run.printed()
    clock.now_s += 0.6
    run.printed()
    run.write("1.out", b"ho\n")
    run.printed()
    run.write("0.out", b" done\n")
    assert run.printed().splitlines()[2:] == ["[rank 0] again...", "[rank 1] ho", "[rank 0]  done"]


def test_a_progress_bar_leaves_its_last_state(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"\r 10%\r 20%\r100%\n\r\nDOS line\r\n")
    assert run.printed() == "[rank 0] 100%\n[rank 0] \n[rank 0] DOS line\n"


def test_a_running_bar_is_refreshed_in_place_on_a_terminal(clock: Clock) -> None:
    run = Run(terminal=True)
    name = "\x1b[36m[rank 0]\x1b[0m "
    for percent in range(30):
        run.write("0.out", b"\r%d%%" % percent)
        clock.now_s += 0.1
        run.display.poll()
    run.write("0.out", b"\r100%\n")
    text = run.printed()
    assert text.count("\r\x1b[K") == 3
    assert "\n" not in text[:-1]
    assert text.endswith(f"\r\x1b[K{name}100%\n")


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(terminal=True)
    run.write("1.out", b"\x1b[1mbold\n")
    assert run.printed() == "\x1b[33m[rank 1]\x1b[0m \x1b[1mbold\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour_wanted(Terminal())
    run = Run(terminal=True)
    run.write("1.out", b"\x1b[1mbold\n")
    assert run.printed() == "[rank 1] bold\n"
    monkeypatch.delenv("NO_COLOR")
    out = Terminal()
    Display(out, Terminal(), colour=False).take(1, "out", b"\x1b[1mbold\n")
    assert out.getvalue() == "[rank 1] bold\n"


def test_the_end_prints_what_is_left(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"one\nno newline")
    run.display.finish()
    assert run.out.getvalue() == "[rank 0] one\n[rank 0] no newline\n"


def test_a_line_without_end_does_not_eat_the_memory(clock: Clock) -> None:
    run = Run()
    for _ in range(200):
        run.write("0.out", b"x" * 100_000)
    run.display.finish()
    lines = run.out.getvalue().splitlines()
    assert 1 < len(lines) < 5
    assert sum(line.count("x") for line in lines) == 20_000_000


def test_a_long_line_is_shown_whole(clock: Clock) -> None:
    run = Run()
    run.write("0.out", b"x" * 300_000 + b"\nnext\n")
    run.display.finish()
    assert run.out.getvalue() == "[rank 0] " + "x" * 300_000 + "\n[rank 0] next\n"


def test_a_closed_pipe_stops_the_output_only(clock: Clock) -> None:
    hears, tells = os.pipe()
    os.close(hears)
    stream = os.fdopen(tells, "w")
    display = Display(stream, io.StringIO())
    display.take(0, "out", b"hello\n" * 10)
    display.take(0, "out", b"hello\n" * 10)
    display.finish()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_stream_that_cannot_say_it_all(clock: Clock) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    display = Display(stream, io.StringIO())
    display.take(0, "out", "grüße 🎉\n".encode())
    display.finish()
    assert raw.getvalue() == b"[rank 0] gr\\xfc\\xdfe \\U0001f389\n"


class Followed:
    """A logs directory, and a captured stream."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.out = io.StringIO()
        self.follower = OutputFollower(logs, self.out, io.StringIO())

    def write(self, name: str, data: bytes) -> None:
        with (self.logs / name).open("ab") as file:
            file.write(data)

    def printed(self) -> str:
        self.follower.poll()
        return self.out.getvalue()


def test_other_files_are_not_shown(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    for name in ("0.jsonl", "00.out", "x.out", "0.out.1", "-1.out"):
        run.write(name, b"no output\n")
    assert run.printed() == ""


def test_an_emptied_file_is_read_from_its_start(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    run.write("0.out", b"first attempt\n")
    run.printed()
    os.truncate(tmp_path / "0.out", 0)
    run.write("0.out", b"second\n")
    assert run.printed() == "[rank 0] first attempt\n[rank 0] second\n"


def test_the_thread_prints_and_finishes(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    run.follower.start()
    for number in range(100):
        run.write("0.out", b"line %d\n" % number)
    run.follower.finish()
    assert run.out.getvalue().splitlines() == [f"[rank 0] line {n}" for n in range(100)]


def test_an_idle_look_is_cheap(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    for rank in range(8):
        run.write(f"{rank}.out", b"hello\n")
        run.write(f"{rank}.err", b"hello\n")
    run.follower.poll()
    began_s = time.process_time()
    for _ in range(100):
        run.follower.poll()
    assert time.process_time() - began_s < 0.1, "2 % of a core at 20 looks a second"


VERDICT = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 8, in <module>\n'
    b"    dist.all_reduce(t)\n"
    b"distdebug.MismatchError: [distdebug] op_mismatch: they differ at 0x7f00%02d\n"
)


def by_torch(rank: int, text: bytes) -> bytes:
    """As torch's excepthook prints it."""
    return b"".join(
        b"[rank%d]: %s" % (rank, line) if line.strip() else line
        for line in text.splitlines(keepends=True)
    )


def test_the_traceback_of_a_verdict_is_one_line_and_the_same_ones_together() -> None:
    run = Run()
    for rank in range(4):
        run.write(f"{rank}.err", by_torch(rank, VERDICT % rank if rank != 2 else VERDICT[:-1]))
    run.write("2.err", b"\n")
    other = VERDICT.replace(b"line 8", b"line 9").replace(b"<module>", b"step") % 4
    run.write("4.err", other.replace(b"recent call last):\n", b"recent call last):\r\n"))
    run.display.finish()
    assert run.err.getvalue().splitlines() == [
        "[rank 0] raised MismatchError at train.py:8 in <module>",
        "[rank 4] raised MismatchError at train.py:9 in step",
        "[ranks 1,2,3] raised MismatchError at train.py:8 in <module>",
    ]


@pytest.mark.parametrize(
    "error", [b"KeyboardInterrupt", b"distdebug.ToolError: [distdebug] tool_error: a bug"]
)
def test_one_of_ctrl_c_and_of_our_own_faults_is_shown_in_full(error: bytes) -> None:
    run = Run()
    whole = VERDICT.splitlines()[:-1]
    for rank in range(3):
        run.write(f"{rank}.err", b"\n".join([*whole, error, b""]))
    run.display.finish()
    lines = run.err.getvalue().splitlines()
    assert lines[:4] == [f"[rank 0] {line.decode()}" for line in (*whole, error)]
    assert lines[4:] == ["[ranks 1,2] the same traceback as that of rank 0"]


def test_what_a_rank_prints_around_a_traceback_keeps_its_order() -> None:
    run = Run()
    run.write("0.err", VERDICT % 0)
    run.write("1.err", b"before\n" + VERDICT % 1 + b"behind\n")
    run.write("2.err", VERDICT % 2)
    run.display.finish()
    told = "raised MismatchError at train.py:8 in <module>"
    assert run.err.getvalue().splitlines() == [
        f"[rank 0] {told}",
        "[rank 1] before",
        f"[rank 1] {told}",
        "[rank 1] behind",
        f"[rank 2] {told}",
    ]


def test_tracebacks_of_the_program_are_shown_as_they_come() -> None:
    """The same error in each rank, caught and printed, again and again; and one that is cut off."""
    run = Run()
    own = VERDICT.replace(b"[distdebug] ", b"") % 0 + b"of two lines\n"
    for rank in (0, 1, 0):
        run.write(f"{rank}.err", own)
    shown = b"".join(b"[rank %d] %s\n" % (0, line) for line in own.splitlines()).decode()
    assert run.err.getvalue() == shown + shown.replace("[rank 0]", "[rank 1]") + shown
    run.write("1.err", b"Traceback (most recent call last):\n  File")
    run.display.finish()
    assert run.err.getvalue().endswith(
        "[rank 1] Traceback (most recent call last):\n[rank 1]   File\n"
    )


def test_half_a_traceback_is_shown_when_it_rests(clock: Clock) -> None:
    run = Run()
    run.write("0.err", b"Traceback (most recent call last):\n")
    assert run.err.getvalue() == ""
    clock.now_s += 1
    run.display.poll()
    assert run.err.getvalue() == "[rank 0] Traceback (most recent call last):\n"
    run.write("0.err", b"ValueError\n")
    assert run.err.getvalue().endswith("\n[rank 0] ValueError\n")


def test_who_printed_the_same_is_mentioned_when_it_rests(clock: Clock) -> None:
    run = Run(terminal=True)
    for rank in range(3):
        run.write(f"{rank}.err", VERDICT % 0)
    before = run.err.getvalue()
    assert "1,2" not in before
    clock.now_s += 1
    run.display.poll()
    assert run.err.getvalue() == (
        before + "[ranks 1,2] raised MismatchError at train.py:8 in <module>\n"
    )
