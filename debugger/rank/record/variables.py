"""Reads what the names of a condition stand for, without running any code of the user's.

A name is read where the interpreter keeps it, an attribute in the dictionary or slot of its object,
an element in a plain list or dictionary: no property, no `__getattr__`, no `__repr__` is called. Of
a call only what is known to change nothing is made again: `len`, a clock, an environment variable.
What remains is not known, and says so.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from ..torch_private.tensor_values import summary_of_tensor

Reader = Callable[[FrameType], Any]
"""Raises LookupError where it cannot tell."""
MOST_TEXT = 60
_SIZED = (list, tuple, dict, set, frozenset, deque, range, str, bytes, bytearray)
_CLOCKS = tuple(
    getattr(time, name)
    for name in ("time", "monotonic", "perf_counter", "process_time", "time_ns", "monotonic_ns")
)
_OPTIMIZED = 1
_dict_of = object.__getattribute__
_mro_of = type.__dict__["__mro__"].__get__
_names_of = type.__dict__["__dict__"].__get__
title_of = type.__dict__["__name__"].__get__
"""The name of a type, whatever its metaclass says."""


def summary(value: Any) -> Any:
    """Returns what is kept of a value: a number, a text, None; of all else a list of one text."""
    kind = type(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else [f"an int of {value.bit_length()} bits"]
    if kind in (float, bool) or value is None:
        return value
    if kind is str:
        return value[:MOST_TEXT]
    if kind in _SIZED:
        return [f"a {kind.__name__} of {len(value)}"]
    tensor = summary_of_tensor(value)
    if tensor:
        return [tensor]
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return [f"{value.dtype.str}{list(value.shape)}"]
    if numpy is not None and kind in (numpy.float64, numpy.float32, numpy.int64, numpy.bool_):
        return value.item()
    return [f"a {title_of(kind)}"]


def reader_of(node: ast.expr, code: CodeType) -> Reader | None:
    """Returns what reads this expression in a frame of the code; None where nothing may."""
    match node:
        case ast.Name(id=name):
            return _of_name(name, code)
        case ast.Attribute(value=owner, attr=name):
            return _of_attribute(reader_of(owner, code), name)
        case ast.Subscript(value=owner, slice=ast.Constant(value=int() | str() as key)):
            return _then(reader_of(owner, code), lambda found: _element(found, key))
        case ast.Call(func=ast.Name(id="len"), args=[one], keywords=[]):
            return _then(reader_of(one, code), _length)
        case ast.Call(func=function, args=[], keywords=[]):
            return _then(reader_of(function, code), _now)
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_], keywords=[]):
            if ast.unparse(function) in ("os.environ.get", "os.getenv"):
                return lambda _frame: os.environ._data.get(os.fsencode(name), b"").decode()  # type: ignore[attr-defined]
    return None


def _then(before: Reader | None, what: Callable[[Any], Any]) -> Reader | None:
    return None if before is None else lambda frame: what(before(frame))


def _of_name(name: str, code: CodeType) -> Reader:
    if not code.co_flags & _OPTIMIZED:
        return lambda frame: _global(frame, name, frame.f_locals)
    if name in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}:
        return lambda frame: _local(frame, name)
    return lambda frame: _global(frame, name, None)


def _global(frame: FrameType, name: str, first: Any) -> Any:
    for names in (first, frame.f_globals):
        if type(names) is dict and name in names:
            return names[name]
    return builtins.__dict__[name]


if sys.version_info[:2] == (3, 12):
    # `f_locals` would write the variables into the dictionary that the program may have got from
    # `locals()`, and iterate over. Later it is none; before, `sys.settrace` has written it already.
    _get_variable = ctypes.pythonapi.PyFrame_GetVar
    _get_variable.argtypes = [ctypes.py_object, ctypes.py_object]
    _get_variable.restype = ctypes.py_object

    def _local(frame: FrameType, name: str) -> Any:
        try:
            return _get_variable(frame, name)
        except NameError:
            raise LookupError(name) from None

else:

    def _local(frame: FrameType, name: str) -> Any:
        return frame.f_locals[name]


def _of_attribute(owner_of: Reader | None, name: str) -> Reader | None:
    if owner_of is None:
        return None
    known: tuple[type | None, Any] = (None, False)
    """Of the newest object's class: to look through all its bases costs some microseconds."""

    def read(frame: FrameType) -> Any:
        nonlocal known
        owner = owner_of(frame)
        kind = type(owner)
        if kind is ModuleType:
            return _dict_of(owner, "__dict__")[name]
        if kind is not known[0]:
            known = (kind, _place(kind, name))
        place = known[1]
        if place is None:
            return _dict_of(owner, "__dict__")[name]
        if place is False:
            raise LookupError(name)
        try:
            return place.__get__(owner)
        except AttributeError:
            raise LookupError(name) from None

    return read


def _place(kind: type, name: str) -> Any:
    """Returns the slot in which objects of a class have an attribute; None: in their dictionary;
    False: the class itself says what they have, which is the user's code."""
    has_dictionary = False
    for base in _mro_of(kind):
        names = _names_of(base)
        if base is not object and "__getattribute__" in names:
            return False
        found = names.get(name)
        if type(found) is MemberDescriptorType:
            return found
        if any("__get__" in _names_of(one) for one in _mro_of(type(found))):
            return False
        dictionary = names.get("__dict__")
        if dictionary is not None and type(dictionary) is not GetSetDescriptorType:
            return False
        has_dictionary |= dictionary is not None
    return None if has_dictionary else False


def _element(owner: Any, key: int | str) -> Any:
    if type(owner) not in (dict, list, tuple):
        raise LookupError(key)
    return owner[key]


def _length(owner: Any) -> int:
    if type(owner) not in _SIZED:
        raise LookupError
    return len(owner)


def _now(function: Any) -> Any:
    if not any(function is one for one in _CLOCKS):
        raise LookupError
    return function()
