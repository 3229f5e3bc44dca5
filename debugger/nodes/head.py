"""The head's knowledge of the other nodes, and its orders to them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.exits import ExitStatus
from ..record.reading import copies
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from .files import FileCopies, InjectedCopies, plan_message
from .limits import ACTS_S, AGAIN_EVERY_S, ANSWERS_S, COMES_S, MEETING_S, TOGETHER_NS
from .listener import Listener
from .many_nodes import Pace, pace_for, packed
from .messages import Message, PatchError, Requests, unpacked
from .mirror import MOST_FILES, Copy, Mirror, MirrorError
from .presence import Standing
from .prompts import Prompts
from .view import Views


@dataclass(slots=True)
class RemoteNode:
    """`starts`: how many ranks (0: not known); `told_ns`: up to when it has told where those stand,
    by our steady clock; `news`: how much of its news is counted;
    `torn_s`: since when something is missing of what it has told (0: nothing);
    `anew_s`: when it was last asked to tell everything once more; `filled`: the last question for
    calls that it has answered; `status`: how its command ended; `over`: nothing of its run is left;
    `left_ranks`: its command has ended, and ranks have not.
    """

    number: int
    host: str
    mirror: Mirror
    injected: InjectedCopies
    starts: int = 0
    told_ns: int = 0
    serial: int = 0
    news: int = 0
    torn_s: float = 0.0
    anew_s: float = -1e9
    filled: int = 0
    status: ExitStatus | None = None
    over: bool = False
    left_ranks: bool = False
    left: bool = False
    lost_ns: int = 0
    early: list[Message] = field(default_factory=list)
    stacks: Mapping[str, Any] | None = None

    @property
    def there(self) -> bool:
        """Whether it can still be asked."""
        return not (self.left or self.lost_ns)


class Pacing:
    """The pacing of all nodes of one job."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._pace = Pace()

    def joined(self, newcomer: int, nodes: int) -> None:
        """Takes a node that has joined: there are so many with it. All are told when that makes
        them tell less often; else this one is, which may have joined after that."""
        pace = pace_for(nodes)
        if pace != self._pace:
            self._pace = pace
            # Beside a look that takes long the link's thread gets its turn after 0.5 ms: each of
            # its calls of ZeroMQ waits for one.
            sys.setswitchinterval(0.0005)
            self._listener.broadcast(Message("pace", pace.told))
        elif pace != Pace():
            self._listener.send(newcomer, Message("pace", pace.told))

    def ask(self) -> bool:
        """Have all nodes tell how far their ranks are that go on calling. False where they tell it
        all the time."""
        if self._pace == Pace():
            return False
        self._listener.broadcast(Message("tell"))
        return True


class Head:
    """The head of one job. Everything here is called from the supervisor's loop."""

    def __init__(
        self, listener: Listener, directory: RunDirectory, say: Callable[[str], None]
    ) -> None:
        self._listener = listener
        self._directory = directory
        self._say = say
        self._logs = FileCopies(directory.path)
        self.nodes: dict[int, RemoteNode] = {}
        self.news = 0
        """The number of times that nodes have told more than that their ranks go on calling."""
        self.stirred_ns = 0
        """When the first digest was taken that told more, since somebody set this to 0."""
        self._stirred: set[int] = set()
        self._incomplete: dict[int, RemoteNode] = {}
        self.interrupted: tuple[int, str] | None = None
        self._asked_ns = self._fills = 0
        self._question: dict[int, dict[str, Any]] = {}
        self.pacing = Pacing(listener)
        self._own_ranks: list[int] = []
        self._late_s = 0.0
        self.prompts = Prompts(directory.path, listener.send)
        self.views = Views(directory.path, listener.send)
        self._requests = Requests()
        self._standing: dict[str, Message] = {}
        self._said: set[str] = set()
        self.given_up_ns = 0
        """When this node was suspended, and others have given it up; 0: that was not so."""

    def clock_errors_ns(self) -> dict[int, int]:
        """Returns by node how far its times may be off; a node whose clock is not known is left
        out."""
        offsets = ((number, self._listener.nodes[number].offset) for number in self.nodes)
        return {number: offset.error_ns for number, offset in offsets if offset.known}

    # -- what they tell ------------------------------------------------------------------------

    def take(self) -> None:
        """Take in what has come, and see who has fallen silent."""
        for number, message in self._listener.received():
            self._guarded(self._take, number, message)
        for number in {*self._stirred, *self._listener.stirred()}:
            self._stir(number)
        for far in list(self._incomplete.values()):
            if not (far.torn_s and far.there):
                del self._incomplete[far.number]
            elif time.monotonic() - far.anew_s >= AGAIN_EVERY_S:
                far.anew_s = time.monotonic()
                self._listener.send(far.number, Message("anew"))
        self.prompts.tell(lambda: self.reachable)
        self.views.look()

    def _stir(self, number: int) -> None:
        """Takes up a node that has fallen silent, or whose clock is known better."""
        far, known = self.nodes.get(number), self._listener.nodes[number]
        if far is None:
            self._stirred.add(number)  # its hello is about to be taken
            return
        self._stirred.discard(number)
        if not far.there:
            return
        if self._timed(far):
            early, far.early = far.early, []
            for message in early:
                self._guarded(self._read_by_its_clock, number, message)
        if known.peer.standing is Standing.MISSED:
            self._listener.give_up(number)
            self._lose(far, known.heard_ns + steady_clock.offset_ns(), "has fallen silent")
        self._count(far)

    def _count(self, far: RemoteNode, ended: bool = False) -> None:
        self.news += far.mirror.news - far.news + ended
        far.news = far.mirror.news

    def _guarded(self, read: Callable[[int, Message], None], number: int, message: Message) -> None:
        """Reads a message; what of it makes no sense, or cannot be kept, is said, and ends
        nothing."""
        try:
            read(number, message)
        except (MirrorError, PatchError, ValueError, TypeError, KeyError) as error:
            if message.kind == "digest" and number in self.nodes:
                self._torn(self.nodes[number])
            self._say_once(f"refused what node {number} has sent: {clean(str(error), 200)}")
        except OSError as error:
            self._torn(self.nodes[number])
            reason = clean(str(error), 200)
            self._say_once(f"what node {number} has sent cannot be kept: {reason}")
        if number in self.nodes:
            self._count(self.nodes[number], message.kind in ("ended", "bye"))

    def _gone(self, far: RemoteNode) -> None:
        """Gives up a node that has left before its ranks had ended: it does not judge by us any
        more."""
        if absent_s := self._listener.absent_s:
            self.given_up_ns = steady_clock.now_ns() - int(absent_s * 1e9)
            self._say_once(
                f"this node was not run for {absent_s:.1f} s, and others have given it up"
            )
        else:
            now_ns = steady_clock.now_ns()
            self._lose(far, far.told_ns or now_ns, "has gone without a word of its ranks")

    def _lose(self, far: RemoteNode, heard_ns: int, how: str) -> None:
        far.lost_ns = heard_ns
        far.mirror.ended(far.lost_ns)
        self.prompts.gone(far.number)
        self.views.gone(far.number)
        self._directory.append_event("node_lost", f"{self.name(far)} {how}")

    def _take(self, number: int, message: Message) -> None:
        data = message.data
        if message.kind == "hello":
            self._welcome(number)
            return
        far = self.nodes[number]
        match message.kind:
            case "digest" | "injected" | "ended":
                # An end comes after what led to it, which may still wait for the node's clock.
                if self._timed(far) and not far.early:
                    self._read_by_its_clock(number, message)
                else:
                    far.early.append(message)
            case "files":
                self._logs.apply(data, message.blob, number)
            case "stacks":
                far.stacks = data
            case "stops":
                self.prompts.stand(number, data)
            case "prompt":
                self.prompts.heard(number, data, message.blob)
            case "reply":
                self._requests.answered(data)
            case "watch" | "request":
                self.views.take(number, message)
            case "interrupted":
                signal = data.get("signal")
                if type(signal) is int and 0 < signal < 65 and self.interrupted is None:
                    self.interrupted = (signal, self.name(far))
            case "bye":
                far.left = True
                for one in far.early:
                    if one.kind == "ended":  # its clock will not be known any more
                        self._read_by_its_clock(number, one)
                if not far.over and "report" not in self._standing:
                    self._gone(far)
                far.over = True
                self.prompts.gone(number)
                self.views.gone(number)

    def _welcome(self, number: int) -> None:
        known = self._listener.nodes[number]
        if number not in self.nodes:
            mirror = Mirror(self._directory.ranks, number)
            mirror.offset_ns = steady_clock.offset_ns()
            self.views.mirrors[number] = mirror
            injected = InjectedCopies(self._directory.path)
            host = clean(known.host, 120)
            self.nodes[number] = RemoteNode(number, host, mirror, injected, known.ranks)
            self._directory.append_event("node", f"node {number} has joined: {known.host}")
        # Who comes again may have missed what follows.
        self.prompts.anew(number)
        self._listener.send(number, plan_message(self._directory.path))
        self.pacing.joined(number, len(self.nodes))
        if self._own_ranks:
            self._listener.send(number, self._who_is_here)
        if self._fills:
            data = self._question.get(number, {"number": self._fills})
            self._listener.send(number, Message("fill", data))
        for message in self._standing.values():
            self._listener.send(number, message)

    def _timed(self, far: RemoteNode) -> bool:
        """Whether the node's clock is known: what it tells is read by that, never by ours."""
        offset = self._listener.nodes[far.number].offset
        if offset.known:
            far.mirror.correct(offset.add_ns + steady_clock.offset_ns())
        return offset.known

    def _read_by_its_clock(self, number: int, message: Message) -> None:
        far = self.nodes[number]
        if message.kind == "injected":
            far.injected.apply(message.data, far.mirror.offset_ns)
        elif message.kind == "ended":
            raw = message.data.get("status")
            if type(raw) is int:
                far.status = ExitStatus.from_wait(raw, steady_clock.now_ns())
            far.over = message.data.get("over") is True
            far.left_ranks = message.data.get("left") is True
        else:
            self._digest(far, message)

    def _digest(self, far: RemoteNode, message: Message) -> None:
        data, serial = message.data, int(message.data["serial"])
        if serial == 1 or data.get("anew") is True:
            far.torn_s = 0.0
        elif serial != far.serial + 1:
            self._torn(far)  # one was lost, or could not be read: what it changed is not known
        far.serial = serial
        for number, name, size in data.get("files", ()):
            far.mirror.announced(int(number), str(name), int(size))
        if far.mirror.left_out:
            self._say_once(
                f"{self.name(far)} has more than {MOST_FILES} records, of processes that it has "
                "started one after the other: what comes beyond these is not followed here"
            )
        patches = list(unpacked(message.blob))
        far.mirror.apply(patches, data.get("busy") is not True)
        self.views.changed(far.number, patches)
        for number, *values in data.get("processes", ()):
            far.mirror.seen(int(number), values)
        if data.get("more") is True:
            return  # the rest of it follows
        far.told_ns = int(data["t"]) + far.mirror.offset_ns
        if far.mirror.news != far.news:
            self.stirred_ns = min(far.told_ns, self.stirred_ns or far.told_ns)
        far.filled = int(data.get("filled", far.filled))

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def copy_of(self, path: Path) -> Copy | None:
        """Returns what the node of a copied record has told of it; None for a record of this
        host."""
        far = self.nodes.get(copies.node_of(path.name))
        return None if far is None else far.mirror.copy_of(path)

    # -- who is there --------------------------------------------------------------------------

    def name(self, far: RemoteNode) -> str:
        """Names the node, in words."""
        return f"node {far.number} ({far.host})" if far.host else f"node {far.number}"

    @property
    def all_over(self) -> bool:
        """Whether nothing of the run is left on any other node that is there, or is about to be."""
        if self._awaited:
            return False
        return all(far.over or not far.there for far in self.nodes.values())

    @property
    def _may_be_lost_too(self) -> bool:
        """Whether a supervisor on the host of a lost one has not been heard since: with the host
        all are lost, and are missed within a moment of each other."""
        for lost in [far for far in self.nodes.values() if far.lost_ns and far.host]:
            for far in self.nodes.values():
                if far.there and far.host == lost.host:
                    heard_ns = self._listener.nodes[far.number].heard_ns + steady_clock.offset_ns()
                    if heard_ns < lost.lost_ns + TOGETHER_NS:
                        return True
        return False

    @property
    def _awaited(self) -> bool:
        """Whether a node that was let in has yet to come, and may."""
        if self._listener.admitted <= len(self.nodes):
            self._late_s = 0.0
            return False
        self._late_s = self._late_s or time.monotonic()
        return time.monotonic() - self._late_s < MEETING_S

    @property
    def worst(self) -> ExitStatus | None:
        """The status of a command that failed on another node; None where none did."""
        for far in self.nodes.values():
            if far.status is not None and far.status.shell_code:
                return far.status
        return None

    @property
    def abandoned(self) -> tuple[ExitStatus, str] | None:
        """The status of a command that failed on another node and has left ranks behind, and that
        node's name."""
        for far in self.nodes.values():
            if far.status is not None and far.there and far.status.shell_code and far.left_ranks:
                return far.status, self.name(far)
        return None

    @property
    def all_told(self) -> bool:
        """Whether every node has told how its ranks are since `stirred_ns`; not where that is 0."""
        return bool(self.stirred_ns) and not any(
            far.there and not far.over and far.told_ns < self.stirred_ns
            for far in self.nodes.values()
        )

    def settled(self, since_ns: int, wanted: Iterable[Path] | None = None) -> bool:
        """Whether every node has told all that had happened by then (our steady clock), and all
        calls that are on record, for which each is asked now. A digest that was on its way is no
        answer: of ranks that call all the time it has the newest calls alone, and where they
        disagreed first may be long before those. `wanted`: the copies of the records of which all
        calls are wanted; None: of all. Whoever has none of them says at once how things stand."""
        if self._asked_ns != since_ns:
            self._asked_ns = since_ns
            self._fills += 1
            self._fill(wanted)
        now_s = time.monotonic()
        return not (self._awaited or self._may_be_lost_too) and not any(
            far.there
            and (
                # A disk that stays full must not keep a verdict back for ever.
                (far.torn_s and now_s - far.torn_s < COMES_S)
                or far.told_ns < since_ns
                # A node tells all calls with the end of its command, without being asked.
                or (far.filled < self._fills and not far.over)
            )
            for far in self.nodes.values()
        )

    def ask_more(self, wanted: Iterable[Path]) -> None:
        """Have the nodes tell all calls of these, too: `settled` waits for them."""
        before = self._question
        self._fills += 1
        self._fill(wanted)
        # Who comes again may have told nothing of what was asked first.
        self._question = {
            number: {**data, "files": [*before.get(number, {}).get("files", ()), *data["files"]]}
            for number, data in self._question.items()
        }

    def _fill(self, wanted: Iterable[Path] | None) -> None:
        question = {"number": self._fills}
        if wanted is None:
            self._question = dict[int, dict[str, Any]]()
            self._listener.broadcast(Message("fill", question))
            return
        files: dict[int, list[int]] = {number: [] for number in self.nodes}
        for path in wanted:
            node = copies.node_of(path.name)
            if node in files:
                known = self.nodes[node].mirror.files.items()
                files[node] += [number for number, copy in known if copy.name == path.name]
        self._question = {number: {**question, "files": of} for number, of in files.items()}
        for number, data in self._question.items():
            self._listener.send(number, Message("fill", data))

    def _torn(self, far: RemoteNode) -> None:
        far.torn_s = far.torn_s or time.monotonic()
        self._incomplete[far.number] = far

    # -- what they are to do -------------------------------------------------------------------

    def ask_stacks(
        self, native: bool, timeout_s: float, nodes: Collection[int] | None = None
    ) -> None:
        """Have these nodes (None: all) take the stacks of their ranks."""
        message = Message("stacks", {"native": native, "timeout_s": timeout_s})
        for far in self.nodes.values():
            far.stacks = None if nodes is None or far.number in nodes else {}
        if nodes is None:
            self._listener.broadcast(message)
        for number in nodes or ():
            self._listener.send(number, message)

    def stacks(self, until_s: float) -> list[Mapping[str, Any]]:
        """Returns the stacks that nodes have taken: all that come before that time of the monotonic
        clock."""
        while time.monotonic() < until_s:
            self.take()
            if self.has_all_stacks:
                break
            time.sleep(0.02)
        return self.stacks_told

    @property
    def has_all_stacks(self) -> bool:
        """Whether all that can have told what `ask_stacks` has asked for."""
        return all(
            far.stacks is not None or not far.there or far.over for far in self.nodes.values()
        )

    @property
    def stacks_told(self) -> list[Mapping[str, Any]]:
        """The stacks that have come so far."""
        return [far.stacks for far in self.nodes.values() if far.stacks is not None]

    @property
    def reachable(self) -> list[int]:
        """The nodes that can be asked."""
        return [far.number for far in self.nodes.values() if far.there and not far.over]

    def ask(self, node: int, request: Mapping[str, Any]) -> str:
        """Have a node act; what it says of it. Raises ValueError with its refusal. From another
        thread than the loop's, in which the answer is taken in."""
        far = self.nodes.get(node)

        def gone() -> str:
            there = far is not None and far.there
            return "" if there else f"node {node} is not there any more"

        whom = "" if far is None else self.name(far)
        send = partial(self._listener.send, node)
        return self._requests.ask(send, request, ACTS_S, whom, gone)

    def tell(self, summary: Mapping[str, Any]) -> None:
        """The verdict."""
        self._decide(Message("verdict", summary))

    def stop(self, signal: int) -> None:
        """Has all nodes stop: a node got Ctrl-C, or the like."""
        self._decide(Message("stop", {"signal": signal}))

    def _decide(self, message: Message) -> None:
        """Tells all nodes, and once more those whose connection breaks and comes again."""
        self._standing[message.kind] = message
        self._listener.broadcast(message)

    def end(self, grace_s: float = 0.0, hasten: Callable[[], bool] = lambda: False) -> bool:
        """Have all nodes end what they have not ended yet, and wait until nothing of the run is
        left anywhere, or until `hasten()`. `grace_s`: what ranks were given to end by themselves.
        """
        self._decide(Message("end"))
        until_s = time.monotonic() + ACTS_S + grace_s
        while not (self.all_over or hasten()) and time.monotonic() < until_s:
            self.take()
            time.sleep(0.02)
        return self.all_over

    def report(self, document: Mapping[str, Any]) -> None:
        """Sends what all nodes print and end with: of a large job the part that findings are
        about."""
        few = len(self.nodes) <= copies.FEW_NODES
        self._decide(Message("report", {}, packed(dict(document), few)))

    def tell_ranks(self, own: Sequence[int]) -> None:
        """Tells the nodes which ranks are here, for the case that the head is lost."""
        self._own_ranks = list(own)[:4096]
        self._listener.broadcast(self._who_is_here)

    @property
    def _who_is_here(self) -> Message:
        return Message("welcome", {"ranks": self._own_ranks})

    def close(self) -> None:
        """Listen no more: as soon as all have the report, and have said so."""
        self.prompts.close()
        until_s = time.monotonic() + ANSWERS_S
        while any(far.there for far in self.nodes.values()) and time.monotonic() < until_s:
            self.take()
            time.sleep(0.01)
        self._listener.close()
