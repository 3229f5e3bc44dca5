"""What is seen of a job beside its stacks: its store, its sockets, NCCL's threads, its dumps."""

from __future__ import annotations

import json
import os
import pickle
import select
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.inspection import dumps, nccl_ras, surroundings
from distdebug.inspection.inspect import Inspection, joined
from distdebug.inspection.look import Limits, Look, Stance
from distdebug.inspection.processes import Job, Process
from distdebug.inspection.store import Keys, keys_of
from distdebug.inspection.surroundings import Surroundings
from distdebug.record.wording import RankState
from distdebug.system.proc import is_in_our, read_stat
from distdebug.system.sockets import links, sockets_of

# -- the store ----------------------------------------------------------------------------------


def test_of_several_attempts_the_newest_counts() -> None:
    names = [f"/worker/attempt_{n}/default_pg/0//cpu//0/{n}" for n in (0, 10, 9)]
    assert Keys("", names).came() == {"": {10}}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9,
        struct.pack("=Q", 1 << 60),
        struct.pack("=QQ", 1, 1 << 50),
        struct.pack("=QQ", 2, 3) + b"abc",
    ],
)
def test_what_is_no_store_is_told(answer: bytes) -> None:
    with serving(lambda _: answer) as port:
        found = keys_of("127.0.0.1", port)
    assert isinstance(found, str)
    assert "does not list its keys" in found or "does not answer" in found


def test_a_port_at_which_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = keys_of(*taken.getsockname())
    assert isinstance(found, Keys)
    assert found.refused


@contextmanager
def serving(answer: Any) -> Iterator[int]:
    """Something that answers once, with what `answer` makes of what came, and closes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            said = answer(self.request.recv(1 << 16))
            if said:
                self.request.sendall(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def waiting_for(*keys: str) -> Stance:
    return Stance(RankState.STORE, op="store", keys=keys, still_s=9.0)


def test_who_waits_for_a_key_that_nobody_has_set() -> None:
    stances = {0: waiting_for("there"), 1: waiting_for("there", "not")}
    around = Surroundings(keys=Keys("host:1", ["/default_pg/0//there"]))
    (line,) = surroundings.details(around, stances, {})
    assert line.startswith('rank 1 waits for "not" of the store at host:1, which nobody has set')


def test_who_has_never_come() -> None:
    around = Surroundings(keys=Keys("", [f"/default_pg/0//cpu//0/{rank}" for rank in (0, 3)]))
    assert surroundings.never_came(around, 4) == (1, 2)
    assert surroundings.never_came(around, 2) == ()  # another world's
    assert surroundings.never_came(Surroundings(), 4) == ()


def test_the_size_of_a_world_that_no_process_tells() -> None:
    def size(came: Sequence[int], *doing: RankState) -> int:
        around = Surroundings(keys=Keys("", [f"default_pg/0//cpu//0/{rank}" for rank in came]))
        return surroundings.world_size(
            around, {rank: Stance(one) for rank, one in enumerate(doing)}
        )

    sends = RankState.MESSAGE
    assert size((0, 1, 2), sends, sends) == 3
    assert size((0, 1, 2), sends, RankState.JOIN) == 0  # others may be on their way
    assert size((0, 2), sends) == 0
    assert size((0, 1), sends, sends, sends) == 0  # another world's
    assert size((), sends) == 0
    assert surroundings.world_size(Surroundings(), {0: Stance(sends)}) == 0


# -- sockets ------------------------------------------------------------------------------------

END = """
import socket, sys
if sys.argv[1] == "take":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        connection.send(b"x")
elif sys.argv[1] == "wait":
    print(flush=True)
else:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.recv(1)  # accepted: before that the other end is nobody's
    connection.setblocking(False)
    try:
        while True:
            connection.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    print("full", flush=True)
sys.stdin.read()
"""


@contextmanager
def end(word: str) -> Iterator[tuple[int, str]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", END, word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.pid, process.stdout.readline().strip()
        process.stdin.close()


def test_what_lies_between_two_ranks() -> None:
    with end("take") as (taker, port), end(port) as (sender, said):
        assert said == "full"
        found = links(sockets_of([sender, taker]), {sender: 0, taker: 1})
    by_rank = {one.rank: one for one in found}
    assert (by_rank[0].peer, by_rank[1].peer, by_rank[0].count) == (1, 0, 1)
    assert by_rank[1].unread > 0
    assert by_rank[0].unsent > 0
    assert by_rank[0].unread == by_rank[1].unsent == 0


def test_a_connection_of_which_the_other_side_has_gone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as here,
    ):
        there, _ = listener.accept()
        there.close()
        assert here.recv(1) == b""
        port = listener.getsockname()[1]
        found = links(sockets_of([os.getpid()]), {os.getpid(): 0})
    (mine,) = [one for one in found if one.address.endswith(f":{port}")]
    assert (mine.peer, mine.closed) == (None, 1)


# -- NCCL's own threads -------------------------------------------------------------------------


def member(rank: int, pid: int, reduces: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": "10.0.0.1",
        "pid": pid,
        "cuda_dev": rank,
        "nvml_dev": rank,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
        "collective_counts": {"Broadcast": 1, "AllReduce": reduces},
    }


def status(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "nccl_version": "2.29.1",
        "communicators_count": 1,
        "communicators": [
            {"hash": "0xae94", "size": 3, "ranks": list(ranks), "missing_ranks": list(missing)}
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }


def in_json(document: dict[str, Any]) -> Any:
    """A server of the documented protocol: a line for each command, then the status."""

    def answer(said: bytes) -> bytes:
        commands = said.decode().splitlines()
        assert commands == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]
        return b"SERVER PROTOCOL 3\nOK\nOK\n" + json.dumps(document).encode()

    return answer


def test_nccl_tells_who_is_behind_and_who_is_silent() -> None:
    silent = {"rank": 2, "host": "h", "pid": 12, "status": {"considered_dead": True}}
    document = status(member(0, 10, 7), member(1, 11, 6), missing=(silent,))
    with serving(in_json(document)) as port:
        found = nccl_ras.asked("127.0.0.1", port)
    assert not isinstance(found, str), found
    around = Surroundings(communicators=found)
    pids = {5: 10, 6: 11, 7: 12}
    assert surroundings.lagging(around, pids) == (6, 7)
    assert surroundings.details(around, {}, pids) == [
        "NCCL: rank 6 has launched 6 of 7 AllReduce in communicator 0xae94",
        "NCCL: rank 7 of communicator 0xae94 is dead",
    ]


def test_nccl_has_nothing_to_say_of_a_job_at_work() -> None:
    with serving(in_json(status(member(0, 10, 7), member(1, 11, 7)))) as port:
        found = nccl_ras.asked("127.0.0.1", port)
    assert not isinstance(found, str), found
    assert surroundings.details(Surroundings(communicators=found), {}, {0: 10, 1: 11}) == []


def inspected(*ranks: dict[str, Any]) -> list[str]:
    """The notes of a look at two ranks that are seen to compute, while NCCL tells this."""
    stances = {rank: Stance(doing=RankState.CODE, running=True) for rank in (0, 1)}
    around = Surroundings(communicators=nccl_ras.parsed(status(*ranks)))
    seen = Inspection(Job(0, "", ()), Look(stances), [], {0: 10, 1: 11}, {}, around, problems=())
    return list(seen.report()["notes"])


def test_where_nothing_is_found_nccls_count_is_told() -> None:
    notes = inspected(member(0, 10, 4), member(1, 11, 3))
    assert "NCCL: rank 1 has launched 3 of 4 AllReduce in communicator 0xae94" in notes
    assert any("at the next look" in note for note in notes)


def test_equal_counts_are_no_note() -> None:
    assert not [note for note in inspected(member(0, 10, 4), member(1, 11, 4)) if "NCCL" in note]


@pytest.mark.parametrize(
    "answer",
    [
        b"SERVER PROTOCOL 1\nOK\nERROR: Unknown command SET FORMAT json\n",
        b'{"communicators": 3}',
        b"",
    ],
)
def test_another_nccl_is_told(answer: bytes) -> None:
    with serving(lambda _: answer) as port:
        assert isinstance(nccl_ras.asked("127.0.0.1", port), str)


def test_nobody_is_asked_where_no_process_of_the_job_listens() -> None:
    """Here the port belongs to this process, which is none of the job's."""

    def answer(_: bytes) -> bytes:
        raise AssertionError("somebody asked")

    with serving(answer) as port, end("wait") as (pid, _):
        told = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
        process = Process(pid, os.getpid(), 0, 0, told=told)
        around = surroundings.look_around(Job(0, "", (process,)), {0: process})
        assert around.communicators == []
        mine = Process(os.getpid(), 0, 0, 0, told=told)
    with serving(in_json(status(member(0, 10, 7)))) as port:
        mine = Process(os.getpid(), 0, 0, 0, told={"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
        around = surroundings.look_around(Job(0, "", (mine,)), {0: mine})
        assert len(around.communicators) == 1


# -- dumps of the flight recorder ---------------------------------------------------------------


def dump(rank: int, op: str) -> bytes:
    """What rank `rank` of two has recorded: one call that is not complete."""
    entry = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + rank,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "started",
        "time_discovered_started_ns": 1_700_000_000_000_000_000,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 30 + rank}],
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.10", "pg_config": groups, "entries": [entry]})


def this_process(prefix: Path) -> Process:
    stat = read_stat(os.getpid())
    assert stat is not None
    told = {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(prefix),
        dumps.PIPE_VARIABLE: str(prefix.with_name("pipe_")),
    }
    return Process(os.getpid(), 0, stat.start_ticks, 0, world_size=2, told=told)


def test_the_dumps_of_the_job_are_read(tmp_path: Path) -> None:
    prefix = tmp_path / "trace_rank_"
    processes = {0: this_process(prefix)}
    assert dumps.recorded(processes) is None
    (tmp_path / "trace_rank_0").write_bytes(dump(0, "all_reduce"))
    (tmp_path / "trace_rank_1").write_bytes(dump(1, "broadcast"))  # of another host
    found = dumps.recorded(processes)
    assert found is not None
    (finding,) = found.findings
    assert (finding.kind, finding.proven, finding.culprits) == ("op_mismatch", True, (0, 1))
    waits = Stance(RankState.COLLECTIVE, op="all_reduce", call="all_reduce()", still_s=9.0)
    (verdict,) = joined([], Look({0: waits}), Surroundings(recorded=found), {0: 1}, Limits())
    assert (verdict.kind, verdict.proven) == ("op_mismatch", True)


def test_what_a_job_has_outlived_is_no_verdict(tmp_path: Path) -> None:
    """A dump proves a mismatch of an hour ago; the program has caught it, and works."""
    prefix = tmp_path / "trace_rank_"
    for rank, op in enumerate(("all_reduce", "broadcast")):
        (tmp_path / f"trace_rank_{rank}").write_bytes(dump(rank, op))
    around = Surroundings(recorded=dumps.recorded({0: this_process(prefix)}))
    works = Stance(RankState.COLLECTIVE, op="all_reduce", call="all_reduce()", still_s=0.3)
    assert joined([], Look({0: works, 1: works}), around, {0: 1, 1: 2}, Limits()) == []
    stands = replace(works, still_s=1.5)
    found = joined([], Look({0: works, 1: stands}), around, {0: 1, 1: 2}, Limits())
    assert [one.kind for one in found] == ["op_mismatch"]


def test_nobody_is_asked_in_another_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At localhost of this host there may be the store of another job."""
    for pid, network in (("7", "net:[1]"), ("8", "net:[2]"), ("self", "net:[1]")):
        (tmp_path / pid / "ns").mkdir(parents=True)
        os.symlink(network, tmp_path / pid / "ns" / "net")
    assert is_in_our("net", 7, tmp_path)
    assert not is_in_our("net", 8, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        job = Job(1, "", [Process(os.getpid(), 1, 1, 0, told=told)])
        monkeypatch.setattr(surroundings, "is_in_our", lambda _kind, _pid: False)
        around = surroundings.look_around(job, {0: job.processes[0]})
        assert around.keys is None
        assert "is in another network" in around.problems[0]
        served.settimeout(0)
        with pytest.raises(BlockingIOError):
            served.accept()


def test_dumps_of_an_older_job_are_left_aside(tmp_path: Path) -> None:
    prefix = tmp_path / "trace_rank_"
    (tmp_path / "trace_rank_0").write_bytes(dump(0, "all_reduce"))
    os.utime(tmp_path / "trace_rank_0", (1e9, 1e9))
    assert dumps.recorded({0: this_process(prefix)}) is None


def test_a_rank_is_asked_for_its_dump_through_its_fifo(tmp_path: Path) -> None:
    prefix = tmp_path / "trace_rank_"
    process = this_process(prefix)
    assert "nobody reads the FIFO of rank 0" in dumps.ask({0: process})[0]
    os.mkfifo(tmp_path / "pipe_0.pipe")
    assert "nobody reads the FIFO of rank 0" in dumps.ask({0: process})[0]
    reading = os.open(tmp_path / "pipe_0.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def watchdog() -> None:
        # Until somebody has opened the other end there is nothing to wait for.
        select.select([reading], [], [], 60.0)
        (tmp_path / "trace_rank_0").write_bytes(dump(0, "all_reduce"))

    thread = threading.Thread(target=watchdog)
    thread.start()
    try:
        assert dumps.ask({0: process}) == []
    finally:
        thread.join()
        os.close(reading)
    assert dumps.recorded({0: process}) is not None


def test_a_dump_is_awaited_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many calls is not written at once, and its writer may be given no core meanwhile."""
    looks = threading.Semaphore(0)
    stamp = dumps.mark_of

    def counted(path: Path) -> tuple[int, int]:
        looks.release()
        return stamp(path)

    monkeypatch.setattr(dumps, "mark_of", counted)
    monkeypatch.setattr(dumps, "WRITTEN_S", 60.0)
    monkeypatch.setattr(dumps, "ANSWER_S", 60.0)
    process = this_process(tmp_path / "trace_rank_")
    os.mkfifo(tmp_path / "pipe_0.pipe")
    reading = os.open(tmp_path / "pipe_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    whole = dump(0, "all_reduce")
    assert dumps._LAST not in (whole[99:100], whole[-2:-1])

    def watchdog() -> None:
        select.select([reading], [], [], 60.0)
        with open(tmp_path / "trace_rank_0", "wb", buffering=0) as file:
            for part in (whole[:100], whole[100:-1], whole[-1:]):
                file.write(part)
                for _ in range(4):
                    looks.acquire(timeout=2.0)

    thread = threading.Thread(target=watchdog)
    thread.start()
    try:
        assert dumps.ask({0: process}) == []
        assert (tmp_path / "trace_rank_0").read_bytes() == whole
    finally:
        thread.join()
        os.close(reading)


def test_what_a_recorder_suspects_counts_where_the_stacks_have_no_culprit() -> None:
    waits = Stance(RankState.COLLECTIVE, op="all_reduce", call="all_reduce()", still_s=9.0)
    look = Look({0: waits, 1: waits})
    device = Finding("stalled", "it never completed", (1,), proven=False, side="device")
    around = Surroundings(recorded=dumps.Recorded([device], []))
    late = Finding("missing_rank", "rank 0 is late", (0,), proven=False)
    stuck = Finding("stalled", "nothing moves", (0, 1), proven=False)

    def verdict(*found: Finding) -> tuple[str, tuple[int, ...]]:
        (one,) = joined(found, look, around, {}, Limits())
        return one.kind, one.culprits

    assert verdict(stuck) == verdict() == ("stalled", (1,))
    assert verdict(late) == ("missing_rank", (0,))
    moves = Look({0: Stance(RankState.CODE, running=True)})
    assert joined([], moves, around, {}, Limits()) == []


# -- torch's debug servers ----------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def of_servers(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> tuple[Any, list[str]]:
    """What the ranks' servers give, where the store has these addresses."""
    names = [f"/debug_server/rank{rank}" for rank in range(len(addresses))]
    told = dict(zip(names, addresses, strict=True))
    monkeypatch.setattr(dumps, "values_of", lambda *_: told)
    return dumps.dumps_of(Keys("127.0.0.1:1", [*names, "/debug_server/rank", "rank7"]))


def test_debug_servers_are_asked_for_their_flight_recorders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(said: bytes) -> bytes:
        assert said.startswith(b"POST /handler/fr_trace_json?includestacktraces=false HTTP/1.1\r\n")
        return OK + b'{"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {}}'

    with serving(answer) as port:
        found, said = of_servers(monkeypatch, f"http://127.0.0.1:{port}")
    assert (found[0].version, said) == ("2.10", [])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n",
        OK + b"not a dump",
        OK + b"[" * 100_000,
        OK + pickle.dumps(print),
    ],
)
def test_what_is_no_debug_server_is_told(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with serving(lambda _: answer) as port:
        found, said = of_servers(monkeypatch, f"http://127.0.0.1:{port}")
    assert found == {}
    assert len(said) == 1
    assert said[0].startswith(f"the debug server of rank 0 at http://127.0.0.1:{port} ")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://h:1/x?y", "http://u:p@h:1", ""])
def test_other_addresses_are_not_gone_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    found, said = of_servers(monkeypatch, address)
    assert (found, len(said)) == ({}, 1)
    assert said[0].endswith("has an address that is none")
