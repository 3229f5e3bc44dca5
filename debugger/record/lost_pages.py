"""Keeps a process alive whose mapped file somebody cuts short, or whose disk or file server fails.

Reading or writing a page that is lost is SIGBUS, which ends a process at the very instruction; a
handler in Python runs only after that, so never. The handler here is 27 lines of assembly, kept as
bytes since nothing of this package is compiled: where the address is in a file that was `kept`, an
empty page of memory takes the place of the lost one, and the instruction goes on. What it reads is
zeros, and what it writes is lost. All else goes to who handled the signal before, or ends the
process as it would have ended without us.

Nothing simpler keeps such a rank alive. Blocks that are reserved (`posix_fallocate`, as each record
has them) are gone with the rest of a file that is cut short. A copy in memory of the process's own
is lost with it by SIGKILL, which a record is there to survive. Memory that can be sealed against
shrinking (`memfd_create`) is no file of the run directory, and is gone with the last process that
holds it. Writing by system calls takes a microsecond a call, of the one and a half that a call of
the program may cost in all.

Only on Linux and x86-64, and where memory may be made executable; elsewhere `keep` does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from struct import Struct

_CODE = bytes.fromhex(
    # The data begins a page behind the code: +0 count, +8 former handler, +16 zeros, +64 regions.
    "837e0800"  # handler: cmp dword [rsi+8], 0      si_code: somebody's kill()?
    "7e62"  #          jle former
    "488b4610"  #      mov rax, [rsi+16]             si_addr
    "4c8d052f100000"  # lea r8, [rip+regions]
    "4d8b08"  # next:  mov r9, [r8]                  where it begins; 0: that was the last
    "4d85c9"  #        test r9, r9
    "744f"  #          jz former
    "4c39c8"  #        cmp rax, r9
    "7206"  #          jb skip
    "493b4008"  #      cmp rax, [r8+8]               where it ends
    "7206"  #          jb found
    "4983c010"  # skip: add r8, 16
    "ebe7"  #          jmp next
    "575652"  # found: push rdi; push rsi; push rdx
    "482500f0ffff"  #  and rax, -4096
    "4889c7"  #        mov rdi, rax
    "be00100000"  #    mov esi, 4096
    "ba03000000"  #    mov edx, PROT_READ | PROT_WRITE
    "41ba32000000"  #  mov r10d, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS
    "49c7c0ffffffff"  # mov r8, -1
    "4531c9"  #        xor r9d, r9d
    "b809000000"  #    mov eax, SYS_mmap
    "0f05"  #          syscall
    "5a5e5f"  #        pop rdx; pop rsi; pop rdi
    "4885c0"  #        test rax, rax
    "7809"  #          js former
    "f048ff05990f0000"  # lock inc qword [rip+count]
    "c3"  #            ret
    "488b05990f0000"  # former: mov rax, [rip+former handler]
    "4883f801"  #      cmp rax, SIG_IGN
    "7602"  #          jbe fatal
    "ffe0"  #          jmp rax
    "bf07000000"  # fatal: mov edi, SIGBUS
    "488d358d0f0000"  # lea rsi, [rip+zeros]         SIG_DFL
    "31d2"  #          xor edx, edx
    "41ba08000000"  #  mov r10d, 8
    "b80d000000"  #    mov eax, SYS_rt_sigaction
    "0f05"  #          syscall
    "b827000000"  #    mov eax, SYS_getpid
    "0f05"  #          syscall
    "89c7"  #          mov edi, eax
    "b8ba000000"  #    mov eax, SYS_gettid
    "0f05"  #          syscall
    "89c6"  #          mov esi, eax
    "ba07000000"  #    mov edx, SIGBUS
    "b8ea000000"  #    mov eax, SYS_tgkill           comes when the handler has returned
    "0f05"  #          syscall
    "c3"  #            ret
)
_PAGE = 4096
_REGIONS_AT = 64
_REGION = Struct("<QQ")
_DATA_BYTES = 1 << 19
_MOST_REGIONS = (_DATA_BYTES - _REGIONS_AT) // _REGION.size - 1
"""Files beyond so many are not kept: behind the last one there must be zeros."""
_GONE = 1
_SA_SIGINFO = 4


def keep(mapped: mmap.mmap) -> None:
    """Protects this mapping: from now on a lost page of it ends no process, for as long as the
    mapping is there."""
    with contextlib.suppress(Exception):  # without it the process is as it was
        handler = _handler()
        if handler is not None:
            handler.keep(mapped)


def kept_file(path: Path, size_bytes: int) -> mmap.mmap:
    """Makes a file of this size, whose blocks are reserved, and returns its memory, which is kept.
    Raises OSError, and leaves no file then."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        mapped = mmap.mmap(descriptor, size_bytes)
        keep(mapped)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return mapped


def lost_pages() -> int:
    """Returns how many pages of kept mappings were found lost so far."""
    return 0 if _made is None else _made.count


def put_behind(enable: Callable[[], None]) -> None:
    """`enable()` puts another handler of fatal signals in place: it gets what is not ours."""
    if _made is None:
        enable()
        return
    with contextlib.suppress(Exception):
        _made.step_aside()
    try:
        enable()
    finally:
        with contextlib.suppress(Exception):
            _made.take()


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Buffer(ctypes.Structure):
    """Python's `Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class _Handler:
    """The one of this process. Raises OSError where it cannot be put in place."""

    def __init__(self) -> None:
        # Private: a forked child drops its parent's mappings, and may make others in their place.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, _PAGE + _DATA_BYTES, flags)
        self._memory[: len(_CODE)] = _CODE
        self._kept: dict[int, weakref.ref[mmap.mmap]] = {}
        self._free: list[int] = []
        """Slots below the last one that nothing is kept in."""
        self._lock = threading.RLock()
        start, _ = _span(self._memory)
        library = ctypes.CDLL(None, use_errno=True)
        library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if library.mprotect(start, _PAGE, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "no memory may be made executable")
        self._action = _Action(handler=start, flags=_SA_SIGINFO)
        self._former = _Action()
        self._library = library
        self.take()

    def take(self) -> None:
        """The signal comes here from now on, and what is not ours goes where it has gone so far.
        Raises OSError."""
        former = _Action()
        self._library.sigaction(signal.SIGBUS, None, ctypes.byref(former))
        if former.handler != self._action.handler:
            self._former = former
            self._write(8, former.handler or 0)
        if self._library.sigaction(signal.SIGBUS, ctypes.byref(self._action), None):
            raise OSError(ctypes.get_errno(), "the signal cannot be handled")

    def step_aside(self) -> None:
        """The signal goes where it went before. Who takes it over then finds no handler of ours to
        hand it back to: the two would send it to each other for ever."""
        self._library.sigaction(signal.SIGBUS, ctypes.byref(self._former), None)

    @property
    def count(self) -> int:
        return int.from_bytes(self._memory[_PAGE : _PAGE + 8], "little")

    def keep(self, mapped: mmap.mmap) -> None:
        start, size = _span(mapped)
        with self._lock:
            slot = self._free.pop() if self._free else len(self._kept)
            if slot >= _MOST_REGIONS:
                return
            at = _REGIONS_AT + slot * _REGION.size
            # In this order nothing else is ever between a beginning and an end.
            self._write(at, start)
            self._write(at + 8, start + size)
            self._kept[slot] = weakref.ref(mapped, lambda _: self._forget(slot))

    def _forget(self, slot: int) -> None:
        at = _REGIONS_AT + slot * _REGION.size
        with self._lock:
            self._write(at + 8, _GONE)
            self._write(at, _GONE)
            if self._kept.pop(slot, None) is not None:
                self._free.append(slot)

    def _write(self, at: int, value: int) -> None:
        self._memory[_PAGE + at : _PAGE + at + 8] = value.to_bytes(8, "little")


_made: _Handler | None = None
_tried = False


def _handler() -> _Handler | None:
    global _made, _tried
    if not _tried:
        _tried = True
        here = sys.platform == "linux" and platform.machine() == "x86_64"
        if here and ctypes.sizeof(ctypes.c_void_p) == 8 and os.sysconf("SC_PAGESIZE") == _PAGE:
            _made = _Handler()
    return _made


def _span(mapped: mmap.mmap) -> tuple[int, int]:
    """Returns the address and the size of a mapping; also of one that is only read, which ctypes
    does not tell otherwise."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapped), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf), int(buffer.len)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
