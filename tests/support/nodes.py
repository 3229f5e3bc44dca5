"""A few nodes on this machine: each with a network, a name, processes and memory of its own.

A node is a network, UTS, mount, PID and time namespace: an address on a switch that all share, a
host name that the others resolve, a /tmp and a /dev/shm of its own, a boot id, monotonic clocks,
and process numbers of its own below an init. Nothing of it has a name outside, so nothing stays
when the process that made it is killed: each init ends when its standard input does, and with it
goes all that it held.

By hand: `python -m tests.support.nodes 2 -- hostname -I` runs a command on each node and prints its
output with the node's name; `{node}` and `{nodes}` in it are the node's number and their count.
Needs root.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

PLUGGED, SECOND = "net0", "net1"
"""Each node's interfaces, to a switch each."""
NETS = {PLUGGED: 213, SECOND: 214}
"""The second number of the addresses on each."""
MOST = 8
START_LIMIT_S = 20.0
LIMIT_S = 110.0
ROOT = Path(__file__).resolve().parents[2]

_INIT = """
set -e
hostname "$1"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
shift 2
mount --bind /tmp /mnt
mount -t tmpfs -o mode=1777 tmpfs /tmp
for shared; do
    mkdir -p "$shared"
    mount --bind "/mnt${shared#/tmp}" "$shared"
done
umount /mnt
echo up
exec env --ignore-signal=CHLD cat >/dev/null
"""
"""What makes a node's file systems and then stands for its init: children that nobody waits for
vanish (CHLD is ignored), and the end of the input is the node's. What the nodes share of /tmp is
put into the /tmp that they do not share."""
_ENTER = 'cd "$0" && exec setsid "$@"'


def _shared(directory: Path) -> list[str]:
    """What of the machine's own /tmp is on every node, from the outside in: this directory, and the
    code and the environment where they lie there, as a clone made for a test may."""
    found = {str(path) for path in (directory, ROOT, Path(sys.prefix), Path(sys.base_prefix))}
    return sorted(path for path in found if path.startswith("/tmp/"))


class Unavailable(Exception):
    """This machine cannot do that; why."""


class Command:
    """A command that was started on a node, and what it has written."""

    def __init__(
        self, node: Node, words: Sequence[str], stem: Path, process: subprocess.Popen[bytes]
    ):
        self.node = node
        self._words = words
        self.stdout, self.stderr = (stem.with_suffix(end) for end in (".out", ".err"))
        self._process = process

    def __repr__(self) -> str:
        code = self._process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return f"<{' '.join(self._words)[:60]} on {self.node.name}: {state}>"

    @property
    def pid(self) -> int:
        """Its number outside of the node. Raises ProcessLookupError once it has ended."""
        until_s = time.monotonic() + START_LIMIT_S
        while self._process.poll() is None and time.monotonic() < until_s:
            try:
                if children := psutil.Process(self._process.pid).children():
                    return children[0].pid
            except psutil.NoSuchProcess:
                break
        raise ProcessLookupError(f"{self!r} has no process")

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, -n for signal n. Raises subprocess.TimeoutExpired."""
        return self._process.wait(limit_s)

    def send_signal(self, number: int) -> None:
        """To the command itself, as `kill` on the node would; nothing once it has ended."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def said(self) -> str:
        """What it has written to both streams."""
        return "".join(path.read_text(errors="replace") for path in (self.stdout, self.stderr))


class Node:
    """One of `Nodes`, which makes it. `directory` is its own working directory, on the file system
    that all share."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self.number = number
        self.name = f"node{number}"
        self.directory = nodes.directory / self.name
        self.directory.mkdir()
        self.up_before_s = 10_000 * (number + 1)
        """How much longer than this machine it has been up: monotonic clocks of nodes are no more
        equal than their boots."""
        self._nodes = nodes
        self._started = 0
        self._unshare: subprocess.Popen[bytes] | None = None
        self.init = 0
        """The process outside that is its init."""
        (self.directory / "etc").mkdir()

    def __repr__(self) -> str:
        return f"<{self.name} {self.address} {'is up' if self.is_up else 'is off'}>"

    @property
    def address(self) -> str:
        return self.address_on(PLUGGED)

    def address_on(self, interface: str) -> str:
        return f"10.{NETS[interface]}.0.{self.number + 1}"

    @property
    def is_up(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    @property
    def network(self) -> str:
        """The file by which a process enters its network."""
        return f"/proc/{self.init}/ns/net"

    def outside(self, path: str) -> Path:
        """Where a file of the node's own is seen from outside, as long as it is up."""
        return Path(f"/proc/{self.init}/root") / path.lstrip("/")

    def power_on(self) -> None:
        """Bring it up and plug it in; what it had in memory before is gone."""
        etc = self.directory / "etc"
        (etc / "hosts").write_text(self._nodes.host_table())
        # No name server answers there, and nobody should wait for one.
        (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        (etc / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._unshare, self.init = _hold(
            [
                *("--uts", "--mount", "--pid", "--mount-proc", "--propagation", "private"),
                *("--time", "--monotonic", str(self.up_before_s)),
                *("--boottime", str(self.up_before_s)),
            ],
            ["sh", "-c", _INIT, "sh", self.name, str(etc), *_shared(self._nodes.directory)],
        )
        for interface in NETS:
            self._nodes.switch(
                f"link add {self._port(interface)} type veth"
                f" peer name {interface} netns {self.init} address {self._mac(interface)}",
                f"link set {self._port(interface)} master {_bridge(interface)} up",
            )
        lines = ["link set lo up"]
        for interface in NETS:
            lines.append(f"address add {self.address_on(interface)}/24 dev {interface}")
            lines.append(f"link set {interface} up")
        _ip(self.init, lines)

    def power_off(self) -> None:
        """As if its plug were pulled: nothing of it runs any more, and nobody is told."""
        self._nodes.switch(*(f"link delete {self._port(interface)}" for interface in NETS))
        self._end()

    def _end(self) -> None:
        if self._unshare is None:
            return
        if self._unshare.poll() is None:
            # The kernel kills all of a PID namespace with its init.
            _kill(self.init)
        self._unshare.wait(START_LIMIT_S)
        if self._unshare.stdin is not None:
            self._unshare.stdin.close()
        self._unshare = None

    def kill_everything(self) -> None:
        """SIGKILL to all that runs on it; its kernel stays up and closes their connections."""
        self.run("sh", "-c", "kill -KILL -1")

    def unplug(self, interface: str = PLUGGED) -> None:
        """The switch forgets it: what either side sends vanishes, and nobody is told."""
        self._nodes.switch(f"link set {self._port(interface)} nomaster")

    def plug_in(self, interface: str = PLUGGED) -> None:
        """The opposite of `unplug`."""
        self._nodes.switch(f"link set {self._port(interface)} master {_bridge(interface)}")

    def take_down(self, interface: str = PLUGGED) -> None:
        """The node itself switches its interface off."""
        _ip(self.init, [f"link set {interface} down"])

    def bring_up(self, interface: str = PLUGGED) -> None:
        """The opposite of `take_down`."""
        _ip(self.init, [f"link set {interface} up"])

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Command:
        """Start a command on the node, in a session of its own and in the node's directory."""
        assert self.is_up, self
        self._started += 1
        stem = self.directory / f"command{self._started}"
        given = dict(os.environ if env is None else env)
        with stem.with_suffix(".out").open("wb") as out, stem.with_suffix(".err").open("wb") as err:
            streams = (subprocess.DEVNULL, out.fileno(), err.fileno())
            process = self.execute(words, given, streams, cwd)
        return self._nodes.started(Command(self, words, stem, process))

    def execute(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """The same with these standard streams; the process outside that waits for the command."""
        return subprocess.Popen(
            [*self.entered, "sh", "-c", _ENTER, str(cwd or self.directory), *words],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=dict(env),
        )

    def run(self, *words: str, limit_s: float = LIMIT_S) -> str:
        """Run a command on the node; what it printed."""
        done = subprocess.run(
            [*self.entered, *words], capture_output=True, text=True, timeout=limit_s, check=False
        )
        assert done.returncode in (0, -signal.SIGKILL), f"{words}: {done.stderr}"
        return done.stdout

    def python(self, script: str, *arguments: str) -> str:
        """Run a Python script there."""
        return self.run(sys.executable, "-c", script, *arguments)

    def processes(self) -> dict[int, str]:
        """What runs on it, by its numbers there: its init's and this question's left out."""
        listed = self.run("ps", "-eo", "pid=,ppid=,stat=,args=").splitlines()
        rows = [line.split(maxsplit=3) for line in listed]
        return {
            int(row[0]): " ".join(row[2:])
            for row in rows
            if row[0] != "1" and not row[3].startswith("ps -eo ")
        }

    def connections(self, towards: str) -> list[list[str]]:
        """Both ends of each of its connections to this address."""
        listed = self.run("ss", "-tnH", "state", "established", "dst", towards)
        return [line.split()[2:4] for line in listed.splitlines()]

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports on which something on it listens."""
        ends = [line.split()[3].rpartition(":") for line in self.run("ss", "-ltnH").splitlines()]
        return {(address, int(port)) for address, _, port in ends}

    def reset(self, connection: Sequence[str]) -> None:
        """Break one of its connections, as something in between would. Raises Unavailable."""
        here, there = connection
        if here not in self.run("ss", "-KtnH", "src", here, "dst", there):
            raise Unavailable("this kernel does not close connections (ss -K)")

    @property
    def entered(self) -> list[str]:
        """What makes the words of a command those of one on this node."""
        return [*_nsenter(self.init), "--uts", "--mount", "--pid", "--time", "--"]

    def _mac(self, interface: str) -> str:
        """The same after a restart, as the others remember it."""
        return f"02:00:00:00:{NETS[interface]:02x}:{self.number:02x}"

    def _port(self, interface: str) -> str:
        """The switch's end of its cable."""
        return f"{self.name}-{interface}"


class Nodes(Sequence[Node]):
    """So many nodes, `node0` first, at 10.213.0.1 and on, and at 10.214.0.1 and on by their second
    interface. `directory` is on the file system that they share.

    Raises Unavailable where there are no namespaces, bridges or veth pairs to be had.
    """

    def __init__(self, count: int, directory: Path) -> None:
        assert 1 <= count <= MOST, count
        self.directory = directory
        self._commands: list[Command] = []
        self._nodes: list[Node] = []
        self._holder, self._switch = _hold([], ["sh", "-c", "echo up; exec cat >/dev/null"])
        try:
            for interface in NETS:
                bridge = _bridge(interface)
                # Without STP a port forwards as soon as it is up.
                self.switch(f"link add {bridge} type bridge", f"link set {bridge} up")
            self._nodes += [Node(self, number) for number in range(count)]
            for node in self._nodes:
                node.power_on()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, place: int) -> Node:  # type: ignore[override]
        return self._nodes[place]

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take them away with all that runs on them."""
        for node in self._nodes:
            node._end()
        for command in self._commands:
            command._process.wait(START_LIMIT_S)
        _kill(self._switch)
        self._holder.wait(START_LIMIT_S)
        assert self._holder.stdin is not None
        self._holder.stdin.close()

    def wrong_clock(self, offset_s: float) -> dict[str, str]:
        """Environment variables of a command whose wall clock is to be wrong by so much. Raises
        Unavailable where there is no compiler."""
        library = self.directory / "wall_clock.so"
        if not library.exists():
            source = Path(__file__).with_name("wall_clock.c")
            words = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
            try:
                subprocess.run(words, check=True, capture_output=True)
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                raise Unavailable(f"a clock that is wrong needs a C compiler: {error}") from None
        return {
            "LD_PRELOAD": str(library),
            "WALL_CLOCK_OFFSET_MS": str(round(offset_s * 1000)),
        }

    def started(self, command: Command) -> Command:
        """Remember it, for the end."""
        self._commands.append(command)
        return command

    def host_table(self) -> str:
        """Each node's /etc/hosts."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{node.address} {node.name}" for node in self._nodes]
        return "\n".join(lines) + "\n"

    def switch(self, *lines: str) -> None:
        """Have the switch's `ip` do this."""
        _ip(self._switch, lines)


@contextmanager
def some(count: int) -> Iterator[Nodes]:
    """So many nodes with a folder of their own, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder, Nodes(count, Path(folder)) as made:
        yield made


def _hold(namespaces: Sequence[str], init: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Namespaces that live as long as a process that prints `up` when it is done, and the outer
    number of that process."""
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    words = ["unshare", "--net", *namespaces, "--fork", "--kill-child", "--", *init]
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError:
        raise Unavailable("there is no `unshare` (util-linux)") from None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as stdout, process.stderr as stderr:
        if stdout.readline() != b"up\n":
            process.kill()
            process.wait()
            raise Unavailable(f"unshare: {stderr.read().decode().strip()}")
    return process, psutil.Process(process.pid).children()[0].pid


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _bridge(interface: str) -> str:
    return f"switch-{interface}"


def _nsenter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net"]


def _ip(pid: int, lines: Sequence[str]) -> None:
    """`ip` for each line, in the network of this process."""
    try:
        done = subprocess.run(
            [*_nsenter(pid), "ip", "-batch", "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable("there is no `nsenter` (util-linux)") from None
    if done.returncode:
        raise Unavailable(f"ip: {'; '.join(lines)}: {done.stderr.strip()}")


def _show(path: Path, name: str, ended: threading.Event) -> None:
    """Print what is written to a file, line by line, until its writer has ended."""
    with path.open("r", errors="replace") as file:
        last = False
        while True:
            last = ended.is_set()
            for line in _lines(file):
                print(f"{name}: {line}", end="" if line.endswith("\n") else "\n", flush=True)
            if last:
                return
            ended.wait(0.05)


def _lines(file: IO[str]) -> Iterator[str]:
    yield from iter(file.readline, "")


def main(arguments: Sequence[str]) -> int:
    """The first exit code that is not 0."""
    if len(arguments) < 3 or not re.fullmatch("[1-8]", arguments[0]) or arguments[1] != "--":
        print("usage: python -m tests.support.nodes 2 -- command {node}", file=sys.stderr)
        return 2
    count, words = int(arguments[0]), arguments[2:]
    with some(count) as nodes:
        commands, threads, ended = [], [], threading.Event()
        for node in nodes:
            filled = [
                word.replace("{nodes}", str(count)).replace("{node}", str(node.number))
                for word in words
            ]
            commands.append(node.start(filled, cwd=Path.cwd()))
        for command in commands:
            for path in (command.stdout, command.stderr):
                thread = threading.Thread(target=_show, args=(path, command.node.name, ended))
                thread.start()
                threads.append(thread)
        try:
            codes = [command.wait(24 * 3600) for command in commands]
        except KeyboardInterrupt:
            for command in commands:
                command.send_signal(signal.SIGINT)
            codes = [command.wait() for command in commands]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    for command, code in zip(commands, codes, strict=True):
        print(f"{command.node.name}: exit code {code}")
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as reason:
        sys.exit(f"no nodes: {reason}")
