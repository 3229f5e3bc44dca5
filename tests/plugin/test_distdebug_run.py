"""`distdebug_run` runs a script as a user would; what its report is expected to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distdebug.testing.run_fixture import Report, RunScript, fail_for_silent_faults

pytest_plugins = ["distdebug.testing.plugin"]
SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
odd = "odd" in sys.argv and dist.get_rank() == 1
t = torch.ones(4, dtype=torch.int32 if odd else torch.float32)
dist.all_reduce(t)  # here
dist.destroy_process_group()
"""


def report(tmp_path: Path, document: dict[str, Any], exit_code: int = 0) -> Report:
    (tmp_path / "report.txt").write_text("the text of the report\n")
    return Report(tmp_path, ["distdebug"], exit_code, "", "", document)


def finding(kind: str, severity: str = "error", **more: Any) -> dict[str, Any]:
    found = {"kind": kind, "severity": severity, "culprits": [2], "victims": [0, 1], "cause": None}
    place = {"file": "/home/me/src/train.py", "line": 41, "function": "step"}
    return found | {"detected_after_s": 0.25, "ranks": {"2": {"location": place}}} | more


@pytest.mark.timeout(300)
def test_a_bug_is_named_and_its_twin_is_clean(distdebug_run: RunScript, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = SCRIPT.splitlines().index("dist.all_reduce(t)  # here") + 1
    found = distdebug_run(script, "odd", nproc=3)
    found.expect("dtype_mismatch", culprits=[1], victims=[0, 2], line=f"train.py:{line}")
    assert found.exit_code == 91
    with pytest.raises(AssertionError, match=r"(?s)expected deadlock .*dtype_mismatch.*MISMATCH"):
        found.expect("deadlock")
    with pytest.raises(AssertionError, match="expected a clean run"):
        found.expect_clean()
    clean = distdebug_run(script, nproc=1)
    clean.expect_clean()
    assert clean.run_dir != found.run_dir


def test_each_part_of_an_expectation_can_fail(tmp_path: Path) -> None:
    found = report(tmp_path, {"outcome": "nan", "findings": [finding("nan")]}, 95)
    found.expect("nan", culprits=[2], victims=[1, 0], within=1.0, line="train.py:41", cause=None)
    found.expect("nan", line="src/train.py:41")
    found.expect("nan", line=41)
    with pytest.raises(AssertionError, match=r"no kind of finding \(kinds: dtype_mismatch\)"):
        found.expect("dtyp_mismatch")
    for wrong, words in (
        ({"culprits": [1]}, r"the culprits are \[2\], not \[1\]"),
        ({"victims": [0]}, r"the victims are \[0, 1\], not \[0\]"),
        ({"within": 0.1}, "it took 0.25 s, more than 0.1 s"),
        ({"line": "train.py:42"}, "the culprits stood at train.py:41, not train.py:42"),
        ({"line": "rain.py:41"}, "not rain.py:41"),
        ({"line": 42}, "at train.py:41, not 42"),
        ({"cause": "lock"}, "its cause is None, not lock"),
        ({"severity": "warning"}, r"expected nan \(warning\), but found nothing"),
    ):
        with pytest.raises(AssertionError, match=words) as raised:
            found.expect("nan", **wrong)
        assert "the text of the report" in str(raised.value)


def test_only_the_verdict_is_an_error_that_counts(tmp_path: Path) -> None:
    both = [finding("nan"), finding("deadlock"), finding("straggler", "warning")]
    found = report(tmp_path, {"outcome": "nan", "findings": both}, 95)
    found.expect("straggler", severity="warning")
    with pytest.raises(AssertionError, match="expected deadlock"):
        found.expect("deadlock")


def test_a_clean_run_has_no_warning_either(tmp_path: Path) -> None:
    report(tmp_path, {"outcome": "ok", "findings": []}).expect_clean()
    late = report(tmp_path, {"outcome": "ok", "findings": [finding("straggler", "warning")]})
    with pytest.raises(AssertionError, match="but found straggler"):
        late.expect_clean()
    with pytest.raises(AssertionError, match="its outcome is not known"):
        report(tmp_path, {}, 2).expect_clean()


def test_a_fault_that_never_fired_fails_the_test(tmp_path: Path) -> None:
    faults = [{"fault": "kill(rank=1)", "fired": True}, {"fault": "nan @ call 9", "fired": False}]
    document = json.loads(json.dumps({"outcome": "ok", "findings": [], "injected": faults}))
    with pytest.raises(pytest.fail.Exception, match=r"never fired: 'nan @ call 9'\n"):
        fail_for_silent_faults(report(tmp_path, document))
    fail_for_silent_faults(report(tmp_path, {"injected": faults[:1]}))
    fail_for_silent_faults(report(tmp_path, {}))


def test_a_fault_that_the_backend_cannot_have_is_refused_before_the_start(
    distdebug_run: RunScript, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it was started')")
    refused = distdebug_run(script, backend="gloo", inject="link(0->1, drop) @ frame 3")
    assert refused.exit_code == 2
    assert "link works on tcp, and not on gloo" in refused.stderr
    assert "it was started" not in refused.stdout + refused.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_late_rank_is_named_as_the_page_has_it(distdebug_run: RunScript, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    fault = "delay(rank=1, 60s) @ all_reduce#0"
    found = distdebug_run(script, inject=fault, options=["--hang-timeout", "5"])
    found.expect("missing_rank", culprits=[1], cause="user_code", line="train.py:9")
    assert (found.exit_code, found.injected[0]["fired"]) == (93, True)


@pytest.mark.parametrize("options", [["--max-restarts", "-1"], "--max-restarts '-1'"])
def test_further_flags_as_words_or_as_one_text(
    distdebug_run: RunScript, tmp_path: Path, options: str | list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it was started')")
    refused = distdebug_run(script, options=options)
    assert refused.exit_code == 2
    assert "--max-restarts" in refused.stderr, refused.stderr
    assert "it was started" not in refused.stdout + refused.stderr


def test_a_script_that_is_not_there(distdebug_run: RunScript) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"there is no script absent\.py in"):
        distdebug_run("absent.py")
