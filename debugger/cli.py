"""The command `distdebug`: finds the command that was asked for, and turns errors into exit codes.

No command's module is imported before it is wanted: the tool starts in a blink, without torch.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from . import __version__
from .commands import COMMANDS, load
from .errors import DistdebugError, UsageError

EXIT_USAGE = 2
EXIT_TOOL_FAILED = 96
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_HELP = "help"
_PACKAGES = {
    "argcomplete": "argcomplete",
    "jinja2": "jinja2",
    "psutil": "psutil",
    "textual": "textual",
    "zmq": "pyzmq",
}
"""The packages that may be missing in an environment that was made to read records only, by
module."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_EXAMPLES = """\
examples:
  distdebug demo                         see it at work, on a planted bug
  distdebug run -n 4 train.py            run train.py on 4 ranks
  distdebug exec -- python spawn.py      run a program that starts its ranks itself
  distdebug report                       what was found in the newest run"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code (see the README)."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what the word at the cursor may become
        from .commands.completion import complete

        return complete()
    _open_what_is_closed()
    _wait_where_full()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a rank's name may hold what this terminal cannot show
            reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        _flush()
    except SystemExit as leaving:  # argparse, after --help
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _told(error)
    return code


def _open_what_is_closed() -> None:
    """A descriptor of a standard stream that is closed (`>&-`) would be given to the next file that
    is opened, and be written to as the terminal: it leads to nowhere instead."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so it is this one
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if not number else "w", closefd=False))  # noqa: SIM115


def _wait_where_full() -> None:
    """Has a standard stream wait where it is full: of a non-blocking one, as a parent that uses
    asyncio or Node.js may leave it, what a command prints would be lost, and nothing said."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            blocks = os.get_blocking(stream.fileno())
        except (OSError, ValueError):
            continue  # not a file
        if not blocks:
            from .record.streams import patient

            setattr(sys, name, patient(stream))


def _dispatch(argv: list[str]) -> int:
    while argv[:1] == [_HELP]:  # `help run` is `run --help`
        argv = [*argv[1:2], "--help"]
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name in ("-V", "--version"):
        print(f"distdebug {__version__}")
        return 0
    if not argv:
        print(_usage(), file=sys.stderr)
        return EXIT_USAGE
    if name not in COMMANDS:
        raise UsageError(_unknown(name))
    command = load(name)
    parser = command.parser()
    return command.run(command.parse(parser, argv[1:]))


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}   {does}" for name, does in COMMANDS.items()]
    return "\n".join(
        [
            "usage: distdebug [--help] [--version] COMMAND ...",
            "",
            "Run any torch.distributed program and be told which rank went wrong, where, and why.",
            "",
            "commands:",
            *lines,
            "",
            _EXAMPLES,
            "",
            "`distdebug help COMMAND` says more.",
        ]
    )


def _unknown(name: str) -> str:
    from .record.safe_text import clean
    from .record.wording import nearest_word

    if name.endswith(".py"):
        return f"{clean(name)} is a script; run it with: distdebug run -n 2 {clean(name)}"
    what = "flag" if name.startswith("-") else "command"
    near = nearest_word(name, ("--version", "--help") if what == "flag" else (_HELP, *COMMANDS))
    meant = f"; did you mean `distdebug {near}`?" if near else "; see `distdebug --help`"
    return f"unknown {what} {clean(name, 80)!r}{meant}"


def _told(error: Exception) -> int:
    """Prints one sentence on stderr, and returns the exit code that says whose fault it was."""
    from .record.reading.reader import FlightError
    from .record.runs.run_directory import RunDirectoryError

    if isinstance(error, UsageError):
        return _say(str(error), error.exit_code, error.below)
    if isinstance(error, DistdebugError):
        return _say(str(error), error.exit_code)
    if isinstance(error, RunDirectoryError | FlightError):
        return _say(str(error), EXIT_USAGE)
    if isinstance(error, ModuleNotFoundError) and error.name in _PACKAGES:
        package = _PACKAGES[error.name]
        return _say(f"{package} is not installed: pip install {package}", EXIT_USAGE)
    if _is_of_removed_directory(error):
        return _say("the working directory was removed; change to one that exists", EXIT_USAGE)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        try:
            sys.stdout.flush()
        except OSError:
            _lead_nowhere(sys.stdout)
        where = error.filename or "the output"
        return _say(f"cannot write {where}: {error.strerror}; write it elsewhere", EXIT_USAGE)
    if isinstance(error, PermissionError) and error.filename:
        return _say(f"{error.filename} cannot be used: permission denied", EXIT_USAGE)
    sentence = f"distdebug itself failed ({type(error).__name__}: {error})"
    return _say(f"{sentence}; {_keep_traceback(error)}", EXIT_TOOL_FAILED)


def _is_of_removed_directory(error: Exception) -> bool:
    """Whether the error is that of `os.getcwd`, which alone names no file, where there is none."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _keep_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="distdebug-", suffix=".traceback.txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return "the traceback could not be written"
    return f"the traceback is in {path}"


def _say(sentence: str, code: int, below: Sequence[str] = ()) -> int:
    from .record.safe_text import clean

    try:
        print("\n".join([f"distdebug: {clean(sentence)}", *map(clean, below)]), file=sys.stderr)
    except (OSError, ValueError):
        pass  # nobody reads it
    return code


def _lead_nowhere(stream: TextIO) -> None:
    """The stream takes what is still in its buffer, which has no reader: the interpreter would
    complain of it at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass  # not a file


def _flush() -> None:
    """The streams are empty afterwards. A terminal that has vanished takes nothing, for which the
    interpreter would end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _lead_nowhere(stream)


if __name__ == "__main__":  # else `python -m distdebug.cli run ...` would succeed, doing nothing
    sys.exit(main())
