"""A fault that cannot be: exit code 2 before anything starts, a caret, and what is possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import runs

from .test_bad_input import typed

PROGRAM = "print('it ran')\n"


@pytest.mark.parametrize(
    ("flags", "spec", "words", "sentence", "possible"),
    [
        (["-n", "2"], "kil(rank=1)", "kil", "did you mean kill?", "actions: kill, exit, "),
        (["-n", "2"], "kill(rank=2)", "2", "there is no rank 2: this run has ranks 0 to 1", ""),
        ([], "kill(rank=1)", "1", "there is no rank 1: this run has rank 0 alone", ""),
        (["-n", "2"], "kill(rank=1) @ al_reduce#5", "al_reduce", "all_reduce?", "ops: all_reduce"),
        (["-n", "2"], "kill(rank=1, signl=9)", "signl", "did you mean signal?", "write kill(rank"),
        (
            ["-n", "2", "--inject-backend", "gloo"],
            "link(0->1, drop)",
            "link",
            "link works on tcp, and not on gloo",
            "",
        ),
        (["-n", "2"], "link(0->1, drop) @ step 3", "step", "not happen at a step", "frame 100"),
    ],
)
def test_a_caret_stands_under_the_wrong_word(
    flags: list[str], spec: str, words: str, sentence: str, possible: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = typed("run", *flags, "--inject", spec, "train.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    first, shown, caret, *more = done.stderr.splitlines()
    assert first.startswith("distdebug: --inject: ")
    assert sentence in first
    assert shown == f"  {spec}"
    assert caret == "  " + " " * spec.rindex(words) + "^" * len(words)
    assert possible in "\n".join(more)
    assert "it ran" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--inject-file", "missing.toml"], "missing.toml cannot be read: no such file"),
        (["--inject-file", "bad.toml"], "bad.toml: it is not TOML"),
        (["--inject-random", "0"], "from 1 to 1000 faults"),
        (["--inject-random", "many"], "--inject-random"),
        (["--seed", "-1", "--inject-random", "2"], "from 0 on"),
        (["--seed", "3"], "give one"),
    ],
)
def test_one_sentence(flags: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "bad.toml").write_text("[[fault")
    done = typed("run", "-n", "2", *flags, "train.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "it ran" not in done.stdout
    assert not (tmp_path / ".distdebug").exists()


def test_a_wrong_fault_in_a_file_is_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "plan.toml").write_text('[[fault]]\nspec = "kill(rank=5)"\n')
    done = typed("run", "-n", "2", "--inject-file", "plan.toml", "train.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    first, shown, caret = done.stderr.splitlines()
    assert first.startswith("distdebug: --inject-file plan.toml: there is no rank 5")
    assert (shown, caret) == ("  kill(rank=5)", "            ^")
    assert "it ran" not in done.stdout


def test_how_many_ranks_a_command_starts_may_be_told(tmp_path: Path) -> None:
    def run(world_size: str, *flags: str) -> runs.Run:
        return runs.finish(
            runs.start(
                "exec",
                [*flags, "--", "true"],
                tmp_path / "run",
                tmp_path,
                {"WORLD_SIZE": world_size},
            ),
            tmp_path / "run",
        )

    told = run("2", "--inject", "kill(rank=2)")
    assert told.exit_code == 2
    assert "there is no rank 2: this run has ranks 0 to 1" in told.stderr
    unknown = run("", "--inject-random", "2", "--seed", "5")
    assert unknown.exit_code == 2
    assert "needs the number of ranks" in unknown.stderr
    assert not (tmp_path / "run").exists()
