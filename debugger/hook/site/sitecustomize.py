"""Runs at the start of every Python process below `distdebug`; costs well under a millisecond.

It lets a rank's output go to its log, reports how child processes ended, and waits for torch to be
imported, upon which the layer installs itself. Then it hands over to the next `sitecustomize` on
the path, if there is one. Without DISTDEBUG_RUN_DIR it does only that.
"""

import os
import sys

# importlib's own parts, which every Python has loaded: `importlib` itself costs half a millisecond.
from _frozen_importlib_external import PathFinder

_SITE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_SITE))
_ALIAS = "_distdebug"
"""Our package's name inside a rank, where `distdebug` may be the user's own module."""
_HEARD = "DISTDEBUG_HEARD"
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def _is_rank_of_launcher():
    """Whether this process is the rank that its environment names, and not a child of it."""
    environment = os.environ
    if "RANK" not in environment or "DISTDEBUG_RANK_PID" in environment:
        return False
    if "TORCHELASTIC_RUN_ID" not in environment:
        parent = _observed_ancestor()
        if parent:  # a rank that has set RANK itself, most likely: its children inherit it
            environment["DISTDEBUG_RANK_PID"] = str(parent)
            return False
    return environment.get("DISTDEBUG_LAUNCHER") != "torchrun" or (
        "TORCHELASTIC_RUN_ID" in environment
    )


def _rank_of_mpi():
    """The rank that MPI's launcher has made this process, where it has no RANK and is no child of
    one; "" for none. Only what it raises before it makes a group is on record by that number."""
    environment, own = os.environ, str(os.getpid())
    rank = environment.get("OMPI_COMM_WORLD_RANK") or environment.get("PMI_RANK", "")
    if "RANK" in environment or "DISTDEBUG_RANK_PID" in environment or not rank.isdecimal():
        return ""
    # Its children inherit MPI's variables; after exec it is the same process.
    return rank if environment.setdefault(_HEARD, own) == own else ""


def _observed_ancestor():
    """The process nearest above this one that has imported torch in this run; 0 for none."""
    ranks = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "ranks")
    pid = os.getppid()
    for _ in range(8):
        if pid <= 1:
            break
        if os.path.exists(os.path.join(ranks, f"pid-{pid}.flight")):
            return pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return 0


def redirect(rank):
    """Send this process's stdout and stderr to the supervisor's drain, if they would come out where
    the supervisor's own do: through a pipe, or a pseudo-terminal where that is a terminal.

    Its own Python children inherit them and must not do it again: their parent may read from
    them through a pipe.
    """
    environment = os.environ
    if environment.get("DISTDEBUG_REDIRECT") == "0":
        return
    endings = {number: _ending_of(number) for number in (1, 2)}
    endings = {number: ending for number, ending in endings.items() if ending is not None}
    kinds = environment.get("DISTDEBUG_OUTPUT")
    if kinds is None:
        for number, ending in endings.items():
            _lead(lambda ending=ending: _log(rank, ending), number)
    elif kinds[0] == "1" and len(endings) == 2:
        # Both go to one place without us, in the order in which they were written.
        _lead(lambda: _drained(rank, "both", kinds[1] == "1", 1), 1, 2)
    else:
        for number, ending in endings.items():
            _lead(lambda n=number, e=ending: _drained(rank, e, kinds[n] == "1", n), number)


def _lead(make, *numbers):
    """Make these descriptors lead to what `make` opens; where it cannot, they stay as they are."""
    try:
        end = make()
    except (OSError, ValueError, AttributeError, ImportError):
        return  # the output stays where it went before
    for number in numbers:
        stream = (sys.stdout, sys.stderr)[number - 1]
        try:
            if stream is not None:
                stream.flush()
            os.dup2(end, number)
            if stream is not None:
                stream.reconfigure(line_buffering=True)
        except (OSError, ValueError, AttributeError):
            continue
    os.close(end)


def _log(rank, ending):
    """The rank's own log file, where nobody drains its output."""
    path = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "logs", f"{int(rank)}.{ending}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _drained(rank, name, terminal, like):
    """The end to write to of a new pipe, or of a terminal like the one at that descriptor; the
    drain has got the other end."""
    import _socket  # `socket` costs some milliseconds

    source, end = os.openpty() if terminal else os.pipe()
    try:
        if terminal:
            _as_plain_as_a_pipe(end, like)
        else:
            _widen(end)
        folder = os.open(os.environ["DISTDEBUG_RUN_DIR"], os.O_RDONLY | os.O_DIRECTORY)
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(5.0)
            connection.connect(f"/proc/self/fd/{folder}/output.sock")
            right = source.to_bytes(4, sys.byteorder)
            connection.sendmsg(
                [f"{int(rank)} {name}".encode()],
                [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, right)],
            )
        finally:
            connection.close()
            os.close(folder)
    except BaseException:
        os.close(end)
        raise
    finally:
        os.close(source)
    return end


def _widen(end):
    """A rank should not wait for the drain after 64 KiB; a machine may allow no more."""
    import fcntl

    try:
        fcntl.fcntl(
            end, 1031, 1 << 20
        )  # F_SETPIPE_SZ, which Python 3.10 has no name for everywhere
    except OSError:
        pass


def _as_plain_as_a_pipe(end, like):
    """The terminal changes nothing of what is written, and is as large as the real one."""
    import fcntl
    import termios

    modes = termios.tcgetattr(end)
    modes[1] &= ~termios.OPOST
    modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(end, termios.TCSANOW, modes)
    try:
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(end, termios.TIOCSWINSZ, size)
    except OSError:
        pass  # the launcher's own stderr is elsewhere


def _ending_of(number):
    """The log that stands for what the descriptor leads to: "out" or "err".

    None where that is not the supervisor's own output: the program has sent it to a file or a
    pipe, which must get it.
    """
    identity = _identity(number)
    own = os.environ.get("DISTDEBUG_STREAMS", f"{identity},{identity}").split(",")
    if own[number - 1] == identity:
        return ("out", "err")[number - 1]
    return ("out", "err")[own.index(identity)] if identity in own else None


def enter_network(rank):
    """Go into the network of this rank, in a run whose ranks have their own."""
    if os.environ.get("DISTDEBUG_NETWORK"):
        try:
            load("record.network").enter(int(rank))
        except Exception as error:
            _complain(_explained(error))


def _tie_to_supervisor():
    """The kernel ends this process when the supervisor is gone, and all that would end it too."""
    _try(lambda: load("record.requests.lifeline").tie(os.environ["DISTDEBUG_RUN_DIR"]))


def _quieten_launcher():
    """Keep torchrun's own words in a file: they are shown when there is nothing better to show."""
    environment = os.environ
    if environment.get("DISTDEBUG_LAUNCHER") != "torchrun" or "TORCHELASTIC_RUN_ID" in environment:
        return
    if environment.get("DISTDEBUG_REDIRECT") == "0":
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    path = os.path.join(environment["DISTDEBUG_RUN_DIR"], "logs", "launcher.err")
    log = os.open(path, flags, 0o600)
    os.dup2(log, 2)
    os.close(log)
    # Its ranks inherit this for their stderr; for them it stands for the supervisor's own.
    out, _, _ = environment.get("DISTDEBUG_STREAMS", ",").partition(",")
    environment["DISTDEBUG_STREAMS"] = f"{out},{_identity(2)}"


def _identity(descriptor):
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def _report_exits():
    """Write down how children ended: only their parent is told by the operating system."""
    path = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "exits.jsonl")
    for name in ("wait", "wait3", "wait4", "waitpid"):
        setattr(os, name, _reporting(name, getattr(os, name), path))


def _reporting(name, original, path):
    def wait(*arguments, **named):
        result = original(*arguments, **named)
        found, status = result[:2]
        if found and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
            try:
                import time

                now = f'"time_ns":{time.time_ns()},"monotonic_ns":{time.monotonic_ns()}'
                line = f'{{"pid":{found},"status":{status},{now}}}\n'
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                log = os.open(path, flags, 0o600)
                os.write(log, line.encode())
                os.close(log)
            except OSError:
                pass  # the run directory is gone or full: the program goes on
        return result

    wait.__module__, wait.__name__, wait.__qualname__ = "os", name, name  # for pickle
    return wait


class _Finder:
    """Sees the first import that is ours to answer, and lets `hook.loading` do that."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("torch", "distdebug", "distcore"):
            return None
        sys.meta_path.remove(self)
        if sys.hexversion < 0x030A0000:  # what `exec` starts may be any Python
            _complain(f"{sys.executable} is too old: Python 3.10 or newer is needed")
            return None
        try:
            loading = _loading()
            finder = loading.installed()
            if "torch" not in sys.modules:
                finder.await_module("torch", _install)
        except Exception as error:
            _complain(_explained(error))
            return None
        return finder.find_spec(name, path, target)


def _loading():
    """`hook.loading`, which needs nothing of the package; so it comes before that."""
    name = _ALIAS + ".hook.loading"
    if name not in sys.modules:
        from importlib import util

        spec = util.spec_from_file_location(name, os.path.join(_PACKAGE, "hook", "loading.py"))
        module = sys.modules[name] = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def load(name):
    """A module of our package, under the name it has inside ranks."""
    return _loading().load(name)


def _install(torch):
    """torch has been imported: put the layer in place, if this process can be a rank."""
    _try(lambda: _begin(torch))


def _begin(torch):
    if not torch.distributed.is_available():
        return
    with _loading().core:  # around all that imports of ours
        if os.environ.get("DISTDEBUG_ONE_HOST"):  # of torchrun's own store, too
            _try(lambda: load("rank.torch_private.loopback").keep_to_loopback())
        if _can_be_rank():
            _try(lambda: _observe(torch.__version__))
        else:
            _try(_meet_nodes)
            import gc

            # torchrun drops nothing of torch: to look for that at its end takes it half a second.
            gc.freeze()


def _observe(version):
    too_old = load("record.torch_versions").too_old(version)
    if too_old:
        _complain(too_old)
    else:
        load("rank.install").install()


def _try(act):
    """Calls a part of the hook. If it fails it is left out, and takes nothing else with it."""
    try:
        act()
    except Exception as error:
        _complain(_explained(error))


def _meet_nodes():
    """In torchrun's own process, where the job has more nodes."""
    if os.environ.get("DISTDEBUG_MEET") and os.environ.get("DISTDEBUG_LAUNCHER") == "torchrun":
        load("rank.process.meeting").observe_launcher()


def _hear_last_words(rank):
    """Put an exception on record that ends the rank before torch is imported, or, where it has no
    RANK, before it has made a group."""
    original = sys.excepthook

    def hook(kind, error, trace):
        try:
            if _ALIAS + ".rank.install" not in sys.modules:
                load("rank.process.crash_before_torch").record(error, int(rank))
            elif "RANK" not in os.environ:
                load("rank.install").ends_as_rank(int(rank), error)
        except Exception as fault:
            _complain(_explained(fault))
        original(kind, error, trace)

    sys.excepthook = hook


def _can_be_rank():
    if (
        os.environ.get("DISTDEBUG_LAUNCHER") == "torchrun"
        and "TORCHELASTIC_RUN_ID" not in os.environ
    ):
        return False  # torchrun itself
    return not any("compile_worker" in argument for argument in sys.orig_argv[:4])


def _explained(error):
    """The error, and what to do where a module that we need is hidden by another, or not there."""
    module = getattr(error, "obj", None)
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    name = (name or getattr(module, "__name__", "")).partition(".")[0]
    file = getattr(module or sys.modules.get(name), "__file__", None) or ""
    of_python = name in getattr(sys, "stdlib_module_names", ())
    needed = of_python or name == "torch"
    if needed and file and "-packages" not in file and not file.startswith(_STANDARD_LIBRARY):
        return f"{error!r}: {file} hides the {name} that distdebug needs; rename it"
    if isinstance(error, ModuleNotFoundError):
        if of_python:
            return f"{error!r}: {sys.executable} was built without it; use another Python"
        needs = "--force-reinstall distdebug" if name in (_ALIAS, "distcore") else name
        return f"{error!r}: {sys.executable} -m pip install {needs}"
    return repr(error)


def _complain(why):
    try:
        os.write(2, f"distdebug: this process is not observed: {why}\n".encode())
        path = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], f"unobserved-{os.getpid()}.txt")
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(log, why.encode())
        os.close(log)
    except OSError:
        pass


def _hand_over():
    """Leave no trace on the path, and run the `sitecustomize` that this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.normpath(entry) != _SITE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        own = sys.modules.get("sitecustomize")
        if own is not None and own.__dict__ is globals():
            # What `site` meets where there is none; the module goes, and its functions stay.
            raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
        return
    from importlib import util

    module = util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("DISTDEBUG_RUN_DIR"):
    try:
        if _is_rank_of_launcher():
            os.environ["DISTDEBUG_RANK_PID"] = str(os.getpid())
            redirect(os.environ["RANK"])
            enter_network(os.environ["RANK"])
            _hear_last_words(os.environ["RANK"])
            _tie_to_supervisor()
        else:
            # The supervisor's warden has started this process, which leads its session.
            if "DISTDEBUG_RANK_PID" not in os.environ and os.getppid() == os.getsid(0):
                _tie_to_supervisor()
            mpi_rank = _rank_of_mpi()
            if mpi_rank:
                _hear_last_words(mpi_rank)
        _quieten_launcher()
        _report_exits()
        sys.meta_path.insert(0, _Finder())
    except Exception as error:
        _complain(_explained(error))
_hand_over()
