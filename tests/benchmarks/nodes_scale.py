"""What the head of a job of many nodes costs, and how that grows from 2 to 2,048 nodes.

python tests/benchmarks/nodes_scale.py [nodes ...]     (default: 2 8 32 128 512 2048)

The head is a real `distdebug exec`. The nodes are connections of one process, with a key each, that
speak the real protocol and tell of flight records which the ranks' own writer has written: 8 ranks
a node, all in one world, each with 12 digests of ranks that call without pause and one in which
they wait in their last call, where one rank has called something else. Of their processes all is
told that a node tells; of logs and stacks nothing.

A row: until the head knew all ranks; what it then costs while all call without pause (CPU, and
bytes of digests from each node a second); from the last digest until it had told the nodes its
verdict, and until they had its report, or it ended; how many had been told that; the most memory
that it had, and what its run directory takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import zmq

from debugger.nodes.messages import Message, message_of
from debugger.nodes.mirror import process_values
from debugger.nodes.offers import SCHEMA, Offer
from debugger.nodes.patches import Patch, packed
from debugger.nodes.source import RecordSource
from debugger.record import layout, steady_clock
from debugger.record.control import ControlError, ask
from debugger.record.layout import Definition
from debugger.record.signature import OP_CODES, Signature, agreement_key, exact_key, hash64
from debugger.record.slots import CallDescription, GroupSlot
from debugger.record.snapshot import Process
from debugger.record.writer import FlightWriter
from tests.support import runs

SIZES = (2, 8, 32, 128, 512, 2048)
RANKS = 8
"""On each node."""
DIGESTS = 12
EVERY_S = 0.25
CALLS = 10
"""Between two digests: more than are told one by one."""
LIMIT_S = 240.0
ALL_REDUCE = Signature("all_reduce", (("float32", (1024,)),), reduce_op="sum")
BROADCAST = Signature("broadcast", (("float32", (1024,)),), root=0)
HOLD = "import time; time.sleep(3600)"
BARS = "bars at 2,048 nodes: verdict 5 s, 300 MB, one core; at rest 20 KB/s a node"


class Rank:
    """Writes one rank's record, and keeps what its node would tell of it."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.path = folder / f"{rank}.flight"
        self._writer = FlightWriter(self.path)
        self._writer.identify({"host": f"n{rank // RANKS}", "job": "simulated"})
        self._writer.claim(rank, world, rank % RANKS, 0)
        group = self._writer.add_group(
            {
                "name": "0",
                "incarnation": 0,
                "desc": "default_pg",
                "ranks": list(range(world)),
                "backend": "gloo",
                "timeout_s": 1800.0,
            }
        )
        assert group is not None
        self._group: GroupSlot = group
        self._site = self._writer.define(Definition.SITE, json.dumps(["/a/train.py", 7, "step"]))
        self._source = RecordSource(self.path)

    def calls(self, count: int) -> list[tuple[int, bytes]]:
        """It makes calls; what is told of that."""
        for _ in range(count):
            number, thread = self._begin(ALL_REDUCE)
            self._writer.finish(number, thread)
        return self._source.sample()

    def waits(self, signature: Signature) -> list[tuple[int, bytes]]:
        """It makes its last call, and stands still."""
        self._begin(signature)
        return [*self._source.sample(), *self._source.sample()]

    def _begin(self, signature: Signature) -> Any:
        described = CallDescription(
            op_code=OP_CODES[signature.op],
            signature_id=self._writer.define(Definition.SIGNATURE, signature.to_json()),
            agree=hash64(agreement_key(signature)),
            exact=hash64(exact_key(signature)),
            contribution=0,
            channel=None,
            volatile=None,
        )
        return self._writer.begin(self._group, described, self._site, 0)


@dataclass
class Node:
    """What one node tells, digest by digest, and its connection."""

    number: int
    blobs: list[bytes]
    key: bytes = b""
    secret: bytes = b""
    socket: Any = None
    serial: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0

    def connect(self, context: zmq.Context[Any], offer: Offer) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.curve_publickey, self.socket.curve_secretkey = self.key, self.secret
        self.socket.curve_serverkey = offer.key.encode()
        self.socket.linger = 0
        self.socket.handshake_ivl = 60_000
        self.socket.connect(offer.endpoint)

    def send(self, message: Message) -> None:
        parts = message.parts()
        self.sent_bytes += sum(map(len, parts))
        self.socket.send_multipart(parts)

    def digest(self, blob: bytes, first: bool = False, filled: int = 0) -> None:
        """Tell it; with the first comes which files and processes there are."""
        self.serial += 1
        data: dict[str, Any] = {"serial": self.serial, "t": time.monotonic_ns()}
        if filled:
            data["filled"] = filled
        if first:
            ranks = range(self.number * RANKS, (self.number + 1) * RANKS)
            alive = process_values(Process(alive=True, state="R"), steady_clock.offset_ns())
            data["files"] = [
                [place, f"{rank}.flight", layout.FILE_BYTES] for place, rank in enumerate(ranks)
            ]
            data["processes"] = [[place, *alive] for place in range(RANKS)]
        self.send(Message("digest", data, blob))

    def answer(self, message: Message) -> None:
        """As a supervisor would."""
        self.seen[message.kind] += 1
        if message.kind == "ping":
            now = {"t": message.data.get("t"), "n": time.monotonic_ns()}
            self.send(Message("pong", now))
        elif message.kind == "fill":
            self.digest(b"", filled=message.data["number"])
        elif message.kind == "stacks":
            self.send(Message("stacks", {"ranks": {}}))
            self.send(Message("ended", {"status": 91 << 8, "over": True}))
        elif message.kind == "report":
            self.send(Message("bye"))


def recorded(nodes: int, folder: Path) -> list[Node]:
    """The nodes with all that they will tell. The last rank is the one that goes wrong."""
    world, made = nodes * RANKS, []
    for number in range(nodes):
        told: list[list[Patch]] = [[] for _ in range(DIGESTS + 2)]
        for place in range(RANKS):
            number_of = number * RANKS + place
            rank = Rank(folder, number_of, world)
            steps = [rank.calls(CALLS) for _ in range(DIGESTS + 1)]
            steps.append(rank.waits(BROADCAST if number_of == world - 1 else ALL_REDUCE))
            for step, pieces in zip(told, steps, strict=True):
                step += [Patch(place, offset, bytes(data)) for offset, data in pieces]
            rank.path.unlink()
        made.append(Node(number, [packed(step) for step in told], *zmq.curve_keypair()))
    return made


class Simulation:
    """The head, and all nodes."""

    def __init__(self, nodes: list[Node], folder: Path) -> None:
        self.nodes = nodes
        self.directory = folder / "run"
        self._errors = folder / "said"
        tasks = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": str(len(nodes) + 1)}
        command = [str(runs.DISTDEBUG), "exec", "--run-dir", str(self.directory), "--"]
        with self._errors.open("wb") as said:
            self.head = psutil.Popen(
                [*command, sys.executable, "-c", HOLD],
                env=runs.environment(tasks),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self.context = zmq.Context(io_threads=1)
        self.context.max_sockets = 1 << 14
        self._poller = zmq.Poller()
        self.most_bytes = 0

    def meet(self) -> None:
        """As a process of the run does which has the job's store."""
        until_s = time.monotonic() + 30
        while True:
            try:
                answer = json.loads(ask(self.directory, "meet", {"host": ""}))
                break
            except ControlError:
                assert time.monotonic() < until_s, self.said()
                time.sleep(0.05)
        offer = Offer.of(answer["offer"])
        ask(self.directory, "lead", {})
        for node in self.nodes:
            ask(self.directory, "admit", {"key": node.key.decode()})
            node.connect(self.context, offer)
            self._poller.register(node.socket, zmq.POLLIN)
        self._by_socket = {node.socket: node for node in self.nodes}
        for node in self.nodes:
            hello = {"schema": SCHEMA, "version": _version(), "host": f"n{node.number}"}
            node.send(Message("hello", hello))

    def serve(self, seconds: float) -> None:
        """Answer what comes, for so long."""
        until_s = time.monotonic() + seconds
        while True:
            left_s = until_s - time.monotonic()
            for socket, _ in self._poller.poll(max(0, int(left_s * 1000))):
                node = self._by_socket[socket]
                while True:
                    try:
                        parts = socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    node.answer(message_of(parts))
            self._weigh()
            if left_s <= 0:
                return

    def until(self, kind: str) -> float:
        """Seconds until every node has been told that."""
        began_s = time.monotonic()
        while not all(node.seen[kind] for node in self.nodes):
            assert time.monotonic() - began_s < LIMIT_S, f"no {kind}\n{self.said()}"
            assert self.head.poll() is None, self.said()
            self.serve(0.01)
        return time.monotonic() - began_s

    def reported(self) -> tuple[float, int]:
        """Seconds until the head had ended or all had its report, and how many had it then."""
        began_s = time.monotonic()
        while True:
            over = self.head.poll() is not None
            took_s = time.monotonic() - began_s
            self.serve(0.01)
            told = sum(1 for node in self.nodes if node.seen["report"])
            if over or told == len(self.nodes):
                return took_s, told
            assert took_s < LIMIT_S, self.said()

    def all_known(self) -> float:
        """Seconds until the head has a copy of every rank's record."""
        began_s = time.monotonic()
        wanted = len(self.nodes) * RANKS
        while len(list((self.directory / "ranks").glob("[!.]*.flight"))) < wanted:
            assert time.monotonic() - began_s < LIMIT_S, self.said()
            self.serve(0.1)
        return time.monotonic() - began_s

    def cpu_s(self) -> float:
        used = self.head.cpu_times()
        return used.user + used.system

    def _weigh(self) -> None:
        if self.head.is_running() and self.head.status() != psutil.STATUS_ZOMBIE:
            self.most_bytes = max(self.most_bytes, self.head.memory_full_info().uss)

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        if self.head.poll() is None:
            self.head.terminate()
            try:
                self.head.wait(30)
            except psutil.TimeoutExpired:
                self.head.kill()
                self.head.wait()
        self.context.destroy(linger=0)


def _version() -> str:
    from importlib.metadata import version

    return version("distdebug")


def measure(count: int) -> str:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="nodes-scale-") as text:
        folder = Path(text)
        began_s = time.monotonic()
        nodes = recorded(count, folder)
        made_s = time.monotonic() - began_s
        job = Simulation(nodes, folder)
        try:
            return f"{count:6} {_measured(job)} {made_s:9.0f}"
        finally:
            job.close()


def _measured(job: Simulation) -> str:
    nodes = job.nodes
    began_s = time.monotonic()
    job.meet()
    job.until("welcome")
    for node in nodes:
        node.digest(node.blobs[0], first=True)
    job.all_known()
    known_s = time.monotonic() - began_s
    job.serve(2.0)
    sent, cpu_s, began_s = sum(node.sent_bytes for node in nodes), job.cpu_s(), time.monotonic()
    for step in range(1, DIGESTS + 1):
        for node in nodes:
            node.digest(node.blobs[step])
        job.serve(max(0.0, began_s + step * EVERY_S - time.monotonic()))
    took_s = time.monotonic() - began_s
    busy = (job.cpu_s() - cpu_s) / took_s
    rate = (sum(node.sent_bytes for node in nodes) - sent) / took_s / len(nodes) / 1000
    for node in nodes:
        node.digest(node.blobs[-1])
    verdict_s = job.until("verdict")
    report_s, told = job.reported()
    job.head.wait(60)
    report = json.loads((job.directory / "report.json").read_text())
    wrong = nodes[-1].number * RANKS + RANKS - 1
    assert report["outcome"] == "op_mismatch", report["findings"]
    if len(nodes) * RANKS > 2:
        assert report["findings"][0]["culprits"] == [wrong], report["findings"][0]["culprits"]
    disk = sum(path.stat().st_blocks * 512 for path in job.directory.rglob("*") if path.is_file())
    return (
        f"{known_s:9.1f} {100 * busy:8.1f} {rate:9.1f} {took_s / DIGESTS:9.2f}"
        f" {verdict_s:9.2f} {verdict_s + report_s:9.2f} {told:6}"
        f" {job.most_bytes / 1e6:8.0f} {disk / 1e6:8.0f}"
    )


def main() -> None:
    """A row for each number of nodes, as soon as it is known."""
    print(__doc__.rpartition("\n\n")[2].strip())
    print(f"{BARS}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        " nodes   known s    CPU % KB/s node   every s verdict s  report s   told"
        "  MB most  MB disk    made s"
    )
    for count in map(int, sys.argv[1:] or SIZES):
        print(measure(count), flush=True)


if __name__ == "__main__":
    main()
