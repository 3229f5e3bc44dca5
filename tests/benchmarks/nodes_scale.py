"""What the head of a job of many nodes costs, and how that grows from 2 to 2,048 nodes.

python tests/benchmarks/nodes_scale.py [nodes ...]     (default: 2 8 32 128 512 2048)

The head is a real `distdebug exec`. The nodes are connections of one process, with a key each, that
speak the real protocol at the pace that the head asks for. Each tells of 8 ranks, all in one world,
that call without pause, and then wait in their last call, where the last rank of all has called
something else. Two ranks' records are made by the ranks' own writer and sampled as a node samples
them: what the others tell is the same, with their own numbers. Of logs and stacks nothing is told.

A row: until the head knew all ranks; while all call without pause: its CPU, and the bytes of
digests from each node a second, for 36 s, or of many nodes from one time that the head asks them
for progress, and looks at all ranks, to the next one; then the last digest of all nodes: until the
first and the last node had been told the verdict, the CPU seconds of the head until the first had,
and until all had its report, or it ended; how many had been told that; whether the verdict names
the rank; the most resident memory that it had, and what its run directory takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import zmq

from distdebug.nodes.keys import SCHEMA, Offer
from distdebug.nodes.many_nodes import Pace, pace_for
from distdebug.nodes.messages import Message, Patch, message_of, packed
from distdebug.nodes.mirror import process_values
from distdebug.record import layout, steady_clock
from distdebug.record.layout import Definition
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.record_source import Piece, RecordSource
from distdebug.record.requests.control import ControlError, ask
from distdebug.record.signature import Signature, agreement_key, exact_key, hash64
from distdebug.record.snapshot import Process
from distdebug.record.writing.slots import CallDescription, CallOrigin, GroupSlot
from distdebug.record.writing.writer import FlightWriter
from tests.support import runs

SIZES = (2, 8, 32, 128, 512, 2048)
RANKS = 8
"""On each node."""
BEFORE_S, REST_S = 2.0, 36.0
"""All call without pause; the first seconds of that are not measured."""
BEFORE_ASKED, ASKED, MORE = 1, 1, 2
"""Many nodes are asked how far they are. So often before it is measured, and then; and some digests
more than these: what they tell by themselves."""
CALLS = 10
"""Between two digests: more than are told one by one."""
LIMIT_S = 240.0
WEIGH_EVERY_S = 0.25
HOST = "n%05d"
_RANK_AT, _PID_AT, _LOCAL_RANK_AT = 16, 12, 24
ALL_REDUCE = Signature("all_reduce", (("float32", (1024,)),), reduce_op="sum")
BROADCAST = Signature("broadcast", (("float32", (1024,)),), root=0)
HOLD = "import time; time.sleep(3600)"
VERSION = version("distdebug")
BARS = "bars at 2,048 nodes: verdict 5 s, 300 MB, one core; at rest 20 KB/s a node"


class Recorded:
    """What is told of a rank: at first, between calls, when it waits, and when all is asked for."""

    def __init__(self, folder: Path, world: int, pace: Pace) -> None:
        path = folder / "0.flight"
        self._writer = FlightWriter(path)
        self._writer.identify({"host": HOST % 0, "job": "simulated"})
        self._writer.claim(1, world, 1, 0)
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
        self._source = RecordSource(path)
        path.unlink()
        self.first = self._calls()
        told = BEFORE_ASKED + ASKED + MORE if asked(pace) else sum(steps_of(pace))
        self.between = [self._calls() for _ in range(told)]
        self.waits: list[Piece] = []
        self.all: list[Piece] = []

    def wait_in(self, last: Signature, still: int) -> None:
        """From now on it does, in its last call; so many of its calls are told."""
        self._begin(last)
        self.waits = [*self._source.sample(still), *self._source.sample(still)]
        self._source.fill()
        self.all = self._source.sample(still)

    def _calls(self) -> list[Piece]:
        for _ in range(CALLS):
            number, thread = self._begin(ALL_REDUCE)
            self._writer.finish(number, thread)
        return self._source.sample()

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
        return self._writer.begin(self._group, described, CallOrigin(self._site), 0)

    def first_of(self, node: int, place: int) -> list[Piece]:
        """Told of that rank: it is the same but for who it is."""
        rank = node * RANKS + place
        rows = []
        for at, data in self.first:
            if at == 0:
                changed = bytearray(data)
                for where, value in ((_PID_AT, 1000 + rank), (_RANK_AT, rank)):
                    changed[where : where + 4] = value.to_bytes(4, "little")
                changed[_LOCAL_RANK_AT : _LOCAL_RANK_AT + 4] = place.to_bytes(4, "little")
                data = bytes(changed)
            elif at == layout.IDENTITY_OFFSET:
                data = data.replace((HOST % 0).encode(), (HOST % node).encode())
            rows.append((at, data))
        return rows


def asked(pace: Pace) -> bool:
    """Whether the head asks how far nodes are that tell as seldom as this."""
    return pace != Pace()


def steps_of(pace: Pace) -> tuple[int, int]:
    """How many digests of ranks that call all the time are told, before it is measured and then."""
    before, measured = (max(1, round(one / pace.busy_s)) for one in (BEFORE_S, REST_S))
    return before, measured


def blob_of(rows: Iterable[Sequence[Piece]]) -> bytes:
    """Of what is told of the ranks of a node, in order."""
    return packed(Patch(place, at, data) for place, row in enumerate(rows) for at, data in row)


@dataclass
class Node:
    """What one node tells, and its connection."""

    number: int
    ranks: list[Recorded]
    """Of each of its ranks, whose record it tells."""
    key: bytes = b""
    secret: bytes = b""
    socket: Any = None
    serial: int = 0
    due_s: float = 0.0
    every_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    verdict: dict[str, Any] = field(default_factory=dict)
    sent_bytes: int = 0
    sent: int = 0
    taken: int = 0
    """Messages since the last hello, and those that the head has taken in, as it has said."""
    progress: Sequence[bytes] = ()
    """What it tells of ranks that call, one after the other; `told`: how many of these it has."""
    told: int = 0

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
        self.sent += message.kind != "pong"
        self.socket.send_multipart(parts)

    def say_hello(self) -> None:
        about = {"schema": SCHEMA, "version": VERSION, "host": HOST % self.number}
        self.sent = self.taken = 0
        self.send(Message("hello", about))

    def digest(self, blob: bytes, **data: Any) -> None:
        self.serial += 1
        times = {"serial": self.serial, "t": time.monotonic_ns()}
        self.send(Message("digest", {**times, **data}, blob))

    def tell_progress(self) -> None:
        """Its ranks go on calling. In the end what was told last is told again."""
        self.digest(self.progress[min(self.told, len(self.progress) - 1)], busy=True)
        self.told += 1
        self.due_s = time.monotonic() + self.every_s

    def all_that_there_is(self) -> None:
        """The first digest: with it comes which files and processes there are."""
        alive = process_values(Process(alive=True, state="R"), None, steady_clock.offset_ns())
        first = self.number * RANKS
        self.digest(
            blob_of(one.first_of(self.number, place) for place, one in enumerate(self.ranks)),
            anew=True,
            files=[[place, f"{first + place}.flight", layout.FILE_BYTES] for place in range(RANKS)],
            processes=[[place, *alive] for place in range(RANKS)],
        )

    def answer(self, message: Message) -> None:
        """As a supervisor would."""
        self.seen[message.kind] += 1
        if message.kind == "ping":
            now = {"t": message.data.get("t"), "n": time.monotonic_ns()}
            self.send(Message("pong", now))
            self.taken = message.data.get("taken", self.taken)
        elif message.kind == "hello":
            self.say_hello()
        elif message.kind == "fill":
            asked = message.data.get("files", range(RANKS))
            rows = [one.all if place in asked else () for place, one in enumerate(self.ranks)]
            self.digest(blob_of(rows), filled=message.data["number"])
        elif message.kind == "tell" and self.progress:
            self.tell_progress()
        elif message.kind == "verdict":
            self.verdict = dict(message.data)
        elif message.kind == "stacks":
            self.send(Message("stacks", {"ranks": {}}))
            self.send(Message("ended", {"status": 91 << 8, "over": True}))
        elif message.kind == "end":
            self.send(Message("ended", {"status": 91 << 8, "over": True}))
        elif message.kind == "report":
            self.send(Message("bye"))
        elif message.kind == "anew":
            raise AssertionError("the head has lost what was told")


class Simulation:
    """The head, and all nodes."""

    def __init__(self, count: int, folder: Path) -> None:
        self.pace = pace_for(count)
        world = count * RANKS
        self.right = Recorded(folder, world, self.pace)
        self.wrong = Recorded(folder, world, self.pace)
        self.nodes = [
            Node(number, [self.right] * RANKS, *zmq.curve_keypair()) for number in range(count)
        ]
        self.nodes[-1].ranks = [*[self.right] * (RANKS - 1), self.wrong]
        self.directory = folder / "run"
        self._errors = folder / "said"
        tasks = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": str(count + 1)}
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
        self.most_by_phase: list[tuple[str, int]] = []
        self._weighed_s = 0.0

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
        self._by_socket = {}
        for node in self.nodes:
            ask(self.directory, "admit", {"key": node.key.decode()})
            node.connect(self.context, offer)
            self._by_socket[node.socket] = node
            self._poller.register(node.socket, zmq.POLLIN)
            node.say_hello()
            self.serve(0.0)

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
            time.sleep(min(left_s, 0.005))  # to look through many sockets takes a while

    def until(self, kind: str, count: int = 0) -> float:
        """Seconds until so many nodes (0: all) have been told that."""
        began_s = time.monotonic()
        while sum(1 for node in self.nodes if node.seen[kind]) < (count or len(self.nodes)):
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

    def all_known(self) -> None:
        """Until the head has a copy of every rank's record."""
        began_s = time.monotonic()
        wanted = len(self.nodes) * RANKS
        while len(list((self.directory / "ranks").glob("[!.]*.flight"))) < wanted:
            assert time.monotonic() - began_s < LIMIT_S, self.said()
            self.serve(0.2)

    def call(self) -> None:
        """From now on all call without pause, and each node tells of it as the head wants."""
        blobs = [blob_of([rows] * RANKS) for rows in self.right.between]
        for node in self.nodes:
            node.progress, node.every_s = blobs, self.pace.busy_s
            node.due_s = time.monotonic() + node.every_s * node.number / len(self.nodes)

    def rest(self, steps: int, questions: int) -> None:
        """Until each node has told so often that its ranks call; of many nodes until the head has
        asked them so often."""
        first = self.nodes[0]
        told, told_of = first.told + steps, first.seen["tell"] + questions
        began_s = time.monotonic()
        while first.seen["tell"] < told_of if asked(self.pace) else first.told < told:
            assert time.monotonic() - began_s < 2 * LIMIT_S, self.said()
            now_s = time.monotonic()
            self._tell(node for node in self.nodes if node.due_s <= now_s)

    def _tell(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.sent - node.taken < self.pace.ahead:  # else the head is behind
                node.tell_progress()
        self.serve(0.02)

    def told_all(self) -> None:
        """Until all nodes have told the same: what follows is what has changed since then."""
        while some := [node for node in self.nodes if node.told < len(node.progress)]:
            self._tell(some)
        self.serve(1.0)

    def fault(self) -> None:
        """All wait from now on, and one has called something else."""
        self.right.wait_in(ALL_REDUCE, self.pace.still_calls)
        self.wrong.wait_in(BROADCAST, self.pace.still_calls)
        blob = blob_of([self.right.waits] * RANKS)
        for node in self.nodes:
            node.progress, node.every_s, node.due_s = (), 0.0, float("inf")
        for node in self.nodes[:-1]:
            node.digest(blob)
        self.nodes[-1].digest(blob_of(one.waits for one in self.nodes[-1].ranks))

    def cpu_s(self) -> float:
        used = self.head.cpu_times()
        return used.user + used.system

    def _weigh(self) -> None:
        now_s = time.monotonic()
        if now_s - self._weighed_s < WEIGH_EVERY_S:
            return
        self._weighed_s = now_s
        try:
            text = Path(f"/proc/{self.head.pid}/status").read_text()
        except OSError:
            return
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                self.most_bytes = max(self.most_bytes, int(line.split()[1]) * 1024)

    def phase_over(self, name: str) -> None:
        """What the head has taken at most until now is kept."""
        self._weighed_s = 0.0
        self._weigh()
        self.most_by_phase.append((name, self.most_bytes))

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


def measure(count: int) -> str:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="nodes-scale-") as text:
        job = Simulation(count, Path(text))
        try:
            return f"{count:6} {count * RANKS:6} {_measured(job)}"
        finally:
            job.close()


def _measured(job: Simulation) -> str:
    nodes = job.nodes
    began_s = time.monotonic()
    job.meet()
    job.until("welcome")
    job.phase_over("met")
    for node in nodes:
        node.all_that_there_is()
        job.serve(0.0)
    job.all_known()
    job.phase_over("known")
    known_s = time.monotonic() - began_s
    before, measured = steps_of(job.pace)
    job.call()
    job.rest(before, BEFORE_ASKED)
    sent, cpu_s, began_s = sum(node.sent_bytes for node in nodes), job.cpu_s(), time.monotonic()
    job.rest(measured, ASKED)
    took_s = time.monotonic() - began_s
    busy = (job.cpu_s() - cpu_s) / took_s
    rate = (sum(node.sent_bytes for node in nodes) - sent) / took_s / len(nodes) / 1000
    job.told_all()
    job.phase_over("calling")
    cpu_s, began_s = job.cpu_s(), time.monotonic()
    job.fault()
    job.until("verdict", 1)
    first_s, used_s = time.monotonic() - began_s, job.cpu_s() - cpu_s
    job.until("verdict")
    verdict_s = time.monotonic() - began_s
    job.phase_over("verdict")
    job.reported()
    report_s = time.monotonic() - began_s
    told = sum(1 for node in nodes if node.seen["report"])
    job.head.wait(60)
    report = json.loads((job.directory / "report.json").read_text())
    wrong = [len(nodes) * RANKS - 1]
    named = [(report["outcome"], report["findings"][0]["culprits"])]
    named += [(node.verdict["kind"], node.verdict["culprits"]) for node in nodes]
    right = all(one == ("op_mismatch", wrong) for one in named)
    disk = sum(path.stat().st_blocks * 512 for path in job.directory.rglob("*") if path.is_file())
    return (
        f"{known_s:8.1f} {100 * busy:7.1f} {rate:9.2f} {first_s:8.2f} {verdict_s:8.2f}"
        f" {used_s:7.2f} {report_s:8.2f} {told:6} {'yes' if right else 'NO':>6}"
        f" {job.most_bytes / 1e6:7.0f} {disk / 1e6:7.0f}   "
        + " ".join(f"{name} {most / 1e6:.0f}" for name, most in job.most_by_phase)
        + ("" if right else f"   {str(Counter(map(str, named)))[:200]}")
    )


def main() -> None:
    """A row for each number of nodes, as soon as it is known."""
    print(__doc__.rpartition("\n\n")[2].strip())
    print(f"{BARS}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        " nodes  ranks  known s  rest % KB/s node  first s    all s   CPU s report s   told"
        "  right  MB RSS MB disk   MB RSS by then"
    )
    for count in map(int, sys.argv[1:] or SIZES):
        print(measure(count), flush=True)


if __name__ == "__main__":
    main()
