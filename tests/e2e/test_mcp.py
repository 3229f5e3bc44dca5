"""`distdebug mcp`, asked by the client of the protocol's own SDK, as an agent's program asks it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from distdebug.commands.explain import page
from distdebug.commands.mcp import MOST_CHARACTERS, TOOLS
from fixtures import recorded

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="needs the extra distdebug[mcp]"
)
COMMAND = str(Path(sys.executable).with_name("distdebug"))
FAULTS = [
    # recording, kind, culprits, where they are to be seen
    ("deadlock", "deadlock", [0, 1, 2], "deadlock_ring.py:12 in ring_shift"),
    ("died", "rank_died", [1], "died_segv.py:21 in main"),
    ("divergence", "divergence", [2], "divergence_skipped_step.py:32 in main"),
    ("exception", "rank_exception", [1], "exception_train_step.py:14 in compute_loss"),
    ("mismatch", "op_mismatch", [2], "train.py:47 in restore"),
    ("missing", "missing_rank", [0], "missing_lock.py:26 in main"),
    ("nan", "nan", [1], "nan_gradient_ddp.py:20 in main"),
    ("p2p", "p2p_mismatch", [0, 1], "p2p_size.py:15 in main"),
    ("straggler", "straggler", [2], "straggler_one_rank.py:22 in main"),
    ("many", None, [130], "many_ranks.py:20 in save_checkpoint"),  # killed before its verdict
]
Ask = Callable[..., Awaitable[dict[str, Any]]]


@asynccontextmanager
async def agent(directory: Path) -> Any:
    import mcp  # half a second, in which each process would collect this

    server = mcp.StdioServerParameters(command=COMMAND, args=["mcp"], cwd=directory)
    async with mcp.Client(mcp.stdio_client(server)) as client:

        async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer
            content = answer.structured_content
            assert len(json.dumps(content)) < 2 * MOST_CHARACTERS
            return content

        ask.client = client
        yield ask


async def whole(ask: Ask, tool: str, **arguments: Any) -> str:
    """All pages of an answer."""
    lines, offset = [], 0
    while offset is not None:
        found = await ask(tool, offset=offset, **arguments)
        assert found["exit_code"] == 0, found
        lines.append(found["text"])
        offset = found["next_offset"]
    return "\n".join(lines)


@pytest.mark.long
def test_an_agent_learns_rank_line_and_reason_of_ten_faults(tmp_path: Path) -> None:
    async def find_out() -> None:
        async with agent(tmp_path) as ask:
            for name, kind, culprits, line in FAULTS:
                run = str(recorded.unpack(name, tmp_path / name).path)
                said = await ask("report", run=run)
                assert "It is data" in said["about_text"]
                assert line in said["text"]
                assert all(str(rank) in said["text"] for rank in culprits)
                document = json.loads(await whole(ask, "findings", run=run))
                found = [(one["kind"], one["culprits"]) for one in document["findings"][:1]]
                assert found == ([(kind, culprits)] if kind else [])
                if kind is not None:
                    assert (await ask("explain", kind=kind))["text"] in page(kind)

    asyncio.run(asyncio.wait_for(find_out(), 120))


def test_the_tools_change_nothing_and_words_are_no_flags(tmp_path: Path) -> None:
    run = str(recorded.unpack("nan", tmp_path / "run").path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    async def ask_all() -> None:
        async with agent(tmp_path) as ask:
            listed = (await ask.client.list_tools()).tools
            assert [one.name for one in listed] == [one.__name__ for one in TOOLS]
            assert all(one.annotations.read_only_hint for one in listed)
            assert "default_pg" in (await ask("calls", run=run, seq=8))["text"]
            logs = await ask("logs", run=run, ranks="0")
            assert "rank 1 contributes nan" in logs["text"]
            assert "holds no stacks" in (await ask("stacks", run=run))["error"]  # left out of it
            assert (await ask("compare", run=run, other=run))["exit_code"] == 0
            assert (await ask("list_runs"))["exit_code"] in (0, 2)
            for tool, words in (
                ("report", {"run": "--help"}),
                ("explain", {"kind": "--help"}),
                ("logs", {"run": run, "ranks": "--follow"}),
                ("calls", {"run": run, "seq": 1, "group": "--json"}),
                ("inspect", {"pid": 2**31 - 1}),
            ):
                refused = await ask(tool, **words)
                assert refused["exit_code"] == 2, refused
                assert refused["error"].startswith("distdebug: ")
            beyond = await ask("report", run=run, offset=10_000)
            assert (beyond["text"], beyond["next_offset"]) == ("", None)

    asyncio.run(asyncio.wait_for(ask_all(), 120))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'distdebug[mcp]'" in said
