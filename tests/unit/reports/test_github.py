"""GitHub Actions: workflow commands that say what is meant, whatever the ranks say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.reports import github, text
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast

from .documents import at, of_run, report


def mismatch(file: str = "/home/u/train.py") -> dict[str, Any]:
    run = Run(4)
    run[0, 1, 3].calls(all_reduce(8), waits=True, line=88)
    run[2].calls(broadcast(8, root=0), waits=True, line=91)
    document = of_run(run)
    document["findings"][0]["ranks"]["2"]["location"]["file"] = file
    return document


def test_an_error_stands_at_the_culprits_line() -> None:
    (line,) = github.annotated(mismatch(), "/home/u")
    assert line == (
        "::error file=train.py,line=91,title=distdebug%3A op_mismatch%2C rank 2::"
        'ranks disagree at collective #0 of group "default_pg" (4 ranks): '
        "rank 2 calls broadcast(src=0, float32[8]); "
        "ranks 0,1,3 call all_reduce(sum, float32[8])%0A"
        "rank 2 here: broadcast(src=0, float32[8]) in step"
    )


def test_ranks_that_differ_at_one_line_are_told_apart() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True, line=88)
    run[1].calls(all_reduce(9), waits=True, line=88)
    (line,) = github.annotated(of_run(run), "/home/user")
    assert "line=88,title=distdebug%3A shape_mismatch%2C ranks 0%2C1::" in line
    here = line.split("%0A")[1:]
    assert here == [
        "rank 0 here: all_reduce(sum, float32[8]) in step",
        "rank 1 here: all_reduce(sum, float32[9]) in step",
    ]


@pytest.mark.parametrize(
    ("file", "workspace", "named"),
    [
        ("/w/repo/train.py", "/w/repo", "train.py"),
        ("/w/repo/train.py", "/w/repo/", "train.py"),
        ("/w/repo/src/a,b:c%d.py", "/w/repo", "src/a%2Cb%3Ac%25d.py"),
        ("/w/repo/..odd/train.py", "/w/repo", "..odd/train.py"),
        ("/w/repository/train.py", "/w/repo", None),
        ("/usr/lib/train.py", "/w/repo", None),
    ],
)
def test_files_are_named_as_the_repository_names_them(
    file: str, workspace: str, named: str | None
) -> None:
    (line,) = github.annotated(mismatch(file), workspace)
    if named is None:
        assert line.startswith("::error title=")
        assert line.endswith(f"%0Aat {file}:91")
    else:
        assert line.startswith(f"::error file={named},line=91,title=")


def test_a_workspace_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (line,) = github.annotated(mismatch(str(tmp_path / "real" / "a.py")), str(tmp_path / "link"))
    assert line.startswith("::error file=a.py,line=91,")
    (line,) = github.annotated(mismatch(str(tmp_path / "link" / "a.py")), str(tmp_path / "real"))
    assert line.startswith("::error file=a.py,line=91,")


def test_a_relative_file_is_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    (line,) = github.annotated(mismatch("a.py"), str(tmp_path))
    assert line.startswith("::error file=sub/a.py,line=91,")


def test_nothing_breaks_out_of_a_command() -> None:
    nasty = "100%\r\n::set-env name=A::b\n%0A ::error file=x::y, a:b"
    assert github.command("error", nasty, title=nasty) == (
        "::error title=100%25%0D%0A%3A%3Aset-env name=A%3A%3Ab%0A%250A %3A%3Aerror "
        "file=x%3A%3Ay%2C a%3Ab"
        "::100%25%0D%0A::set-env name=A::b%0A%250A ::error file=x::y, a:b"
    )
    assert github.command("warning", "w") == "::warning::w"
    finding = Finding("rank_exception", nasty, (0,), ranks={0: at(nasty, nasty, 1, nasty, nasty)})
    (line,) = github.annotated(report([finding], world_size=1), "/home/u")
    assert not re.search("[\r\n]", line)
    assert line.count("::", 2) == nasty.count("::") * line.count("set-env") + 1


def test_each_line_and_each_finding_once_the_verdict_first() -> None:
    places = {0: at("runs", None, 5), 1: at("runs", None, 5), 2: at("runs", None, 6)}
    dead = Finding("rank_died", "they died", (0, 1, 2), ranks=places)
    slow = Finding("straggler", "rank 1 is slow", (1,), severity="warning", ranks=places)
    late = Finding("join_timeout", "rank 3 never came", (3,))
    document = report([slow, dead, late], outcome="rank_died", exit_code=94)
    lines = github.annotated(document, "/home/u")
    assert [re.sub(r"%0A.*", "", line) for line in lines] == [
        "::error file=train.py,line=5,title=distdebug%3A rank_died%2C ranks 0%2C1::they died",
        "::error file=train.py,line=6,title=distdebug%3A rank_died%2C rank 2::they died",
        "::error title=distdebug%3A join_timeout%2C rank 3::rank 3 never came",
        "::warning file=train.py,line=5,title=distdebug%3A straggler%2C rank 1::rank 1 is slow",
    ]
    strict = report([slow], outcome="straggler", exit_code=1)
    assert [line[:8] for line in github.annotated(strict, "/")] == ["::error "]


def test_a_failure_without_a_finding_is_told_and_a_success_is_not() -> None:
    failed = report(outcome="failed", exit_code=1)
    (line,) = github.annotated(failed, "/")
    assert line.startswith("::error title=distdebug%3A failed::FAILED  the program ended with exit")
    assert github.annotated(report(), "/") == []


def test_no_more_than_github_shows() -> None:
    ranks = {rank: at("runs", None, rank + 1) for rank in range(40)}
    finding = Finding("deadlock", "a ring", tuple(range(40)), ranks=ranks)
    lines = github.annotated(report([finding], world_size=40), "/")
    assert len(lines) == 10
    assert lines[0].startswith("::error file=home/u/train.py,line=1,")


def test_the_summary_is_the_report_in_a_fence() -> None:
    document = mismatch()
    body = text.render(document)
    assert github.summary(document, "see x") == f"\n```text\n{body}```\n\nsee x\n"
    finding = Finding("rank_exception", "```` ends it\n</pre>", (0,), ranks={0: at("ran", None, 1)})
    document = report([finding], world_size=1)
    fence, *_, last = github.summary(document).strip().splitlines()
    assert (fence, last) == ("`````text", "`````")


def test_a_summary_that_github_would_not_show_is_cut() -> None:
    made = github.summary(report(notes=["é" * 4000] * 400, outcome="failed", exit_code=1))
    assert len(made.encode()) < (1 << 19) + 100
    assert made.endswith("\n... (cut)\n```\n")
