"""`--check nan-origin`: where the NaN was made that a rank contributes to a call.

While the program runs, what each module returns is looked at, and the gradient of what the
outermost ones return. Once the check of data has found a NaN, the module that was the first to
return one is called again, on this rank alone and below a mode that sees each operation. Where all
that was returned is sound, the backward is made again, by torch's anomaly detection. Modules that
communicate are not called again: the other ranks would not take part.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...record.layout import CallSite
from ...record.wording import at_site
from ..log.rank_log import report_own_fault
from ..record import call_site
from ..record.describe import first_wrong
from ..torch_private.operator_calls import calls_with, tensors_of
from ..torch_private.training import DDP, backward_function, current_backward, on_module_calls

_KEPT = 8
"""Calls of outermost modules that are kept: a model, its loss, the other half of a GAN."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_Wrong = Callable[[Any], bool]


@dataclass(slots=True, eq=False)
class Forward:
    """A call of a module that no other has called, the `number`-th of its class. `first`: what was
    the first to return a NaN (True), or anything that is not finite (False), within it."""

    number: int
    root: Module
    random: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    first: dict[bool, tuple[Module, tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    returned: dict[bool, bool] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    backward: int | None = None
    communicates: bool = False
    communicates_back: bool = False

    def keep_gradient(self, index: int, gradient: Tensor) -> None:
        """Keeps that of one of the tensors that were returned, and the number of its backward."""
        self.gradients[index], self.backward = gradient, current_backward()

    def name(self, one: Module) -> str:
        """Returns its qualified name; of the outermost one that of its class."""
        name = next((name for name, found in self.root.named_modules() if found is one), "")
        if isinstance(self.root, DDP):
            name = name.removeprefix("module").removeprefix(".")
        inner = self.root.module if isinstance(self.root, DDP) and not name else one
        return f"`{name}` ({type(inner).__name__})" if name else f"`{type(inner).__name__}`"


class NanOrigin:
    """The last calls of this process's modules, and what came of them."""

    def __init__(self) -> None:
        self._forwards: deque[Forward] = deque(maxlen=_KEPT)
        self._counts: dict[type, int] = {}
        self._thread = threading.local()
        self._received = ""
        self._watches = self._off = False

    def watch(self) -> None:
        """Begins to look at modules."""
        if not self._watches:
            self._watches = True
            on_module_calls(self._begins, self._ends)

    # -- while the program runs ------------------------------------------------------------------

    def _begins(self, module: Module, outermost: bool) -> None:
        if outermost:
            number = self._counts[type(module)] = self._counts.get(type(module), 0) + 1
            self._thread.forward = Forward(number, module, torch.get_rng_state())

    def _ends(
        self, module: Module, args: tuple[Any, ...], kwargs: Any, output: Any, outermost: bool
    ) -> None:
        forward: Forward | None = getattr(self._thread, "forward", None)
        if self._off or forward is None:
            return
        try:
            infinite = _holds(_not_finite, output)
            wrong = {True: infinite and _holds(_nan, output), False: infinite}
            for nan, found in wrong.items():
                if found:
                    forward.first.setdefault(nan, (module, args, kwargs))
            if outermost:
                self._thread.forward = None
                forward.args, forward.kwargs, forward.returned = args, kwargs, wrong
                self._forwards.append(forward)
                for index, one in enumerate(tensors_of(output)):
                    if one.grad_fn is not None:
                        hook: Any = one.register_hook  # which torch's stubs leave untyped
                        hook(partial(forward.keep_gradient, index))
        except Exception as error:
            self._off = True
            report_own_fault("the search for the origin of a NaN", error)

    def calls(self, frame: FrameType) -> None:
        """The program makes a call of a group; `frame` is one of ours."""
        forward: Forward | None = getattr(self._thread, "forward", None)
        if forward is not None:
            forward.communicates = True
        back = current_backward()
        if back is not None and back >= 0 and not call_site.by_autograd(frame):
            for one in self._forwards:
                one.communicates_back = True

    def receives(self, call: str, tensors: list[Tensor]) -> None:
        """The call has brought these to the rank, which had contributed nothing that was wrong."""
        if not self._received and _holds(_nan, tensors):
            self._received = call

    # -- once there is one ---------------------------------------------------------------------

    def found(self, value: Any) -> str:
        """Returns where the `value` (a number that is not finite) comes from, in a sentence."""
        nan = value != value
        self._off = True
        try:
            with torch.no_grad():
                return self._from_forward(nan) or self._from_backward(nan) or self._from_elsewhere()
        except Exception as error:
            report_own_fault("the search for the origin of a NaN", error)
            return "where it was made is not known"
        finally:
            self._off = False

    def _from_elsewhere(self) -> str:
        if self._received:
            return f"it came with the result of {self._received}, from another rank"
        if not self._forwards:
            return "where it was made is not known: no module of torch.nn was called"
        return (
            "where it was made is not known: what modules returned was sound, and its gradient too"
        )

    def _from_forward(self, nan: bool) -> str:
        forward = next((one for one in self._forwards if one.returned.get(nan)), None)
        if forward is None:
            return ""
        module, args, kwargs = forward.first[nan]
        wrong: _Wrong = _nan if nan else _not_finite
        named = [*module.named_parameters(), *module.named_buffers()]
        held = [f"its {name}" for name, one in named if wrong(one)]
        text = f"{forward.name(module)} was the first that returned it"
        if held:
            text += f"; {held[0]} holds it already, since an earlier step"
        elif _holds(wrong, (args, kwargs)):
            given = self._received and f", and so had the result of {self._received}"
            batch = _holds(wrong, (forward.args, forward.kwargs))
            where = "the batch has it" if batch else "its input had it"
            text += f"; {where}{given}"
        elif forward.communicates:
            text += "; its input and parameters were sound"
        else:
            text += self._operation(module, args, kwargs, wrong)
        return f"{text}; {_batch(forward)}"

    def _operation(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], wrong: _Wrong
    ) -> str:
        first = _FirstWrong(wrong)
        with _kept(module), first.looks():
            module.forward(*args, **kwargs)
        return f", by {first.found}" if first.found else "; its input and parameters were sound"

    def _from_backward(self, nan: bool) -> str:
        behind: list[Forward] = []
        wrong: _Wrong = _nan if nan else _not_finite
        for forward in reversed([one for one in self._forwards if one.gradients]):
            if _holds(wrong, forward.gradients):
                if behind:
                    break
                return (
                    f"what {forward.name(forward.root)} returned was sound, and its gradient was "
                    f"not: the loss that was made of it; {_batch(forward)}"
                )
            behind.append(forward)
        for made_by in behind:
            alone = not (made_by.communicates or made_by.communicates_back)
            if alone and (made := self._again(made_by)):
                break
        else:
            back = current_backward()
            if not behind or back is None or back < 0:
                return ""
            # Of the last backward that which was called first: its own comes last.
            made_by = [one for one in behind if one.backward == behind[0].backward][-1]
            made = ""
        return (
            f"it arose in the backward of {made_by.name(made_by.root)}{made}: what that returned "
            f"was sound, and its gradient too; {_batch(made_by)}"
        )

    def _again(self, forward: Forward) -> str:
        """Makes forward and backward again; the function of autograd that is wrong then."""
        root = forward.root.module if isinstance(forward.root, DDP) else forward.root
        now = torch.get_rng_state()
        with ExitStack() as on:
            on.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # that anomaly detection is on
            on.callback(torch.set_rng_state, now)
            on.enter_context(_kept(root))
            on.enter_context(torch.enable_grad())
            on.enter_context(torch.autograd.detect_anomaly(check_nan=False))
            torch.set_rng_state(forward.random)
            outputs = tensors_of(root(*forward.args, **forward.kwargs))
            given = [*tensors_of((forward.args, forward.kwargs)), *root.parameters()]
            first = _FirstWrong(_not_finite, backward=True)
            on.enter_context(first.looks())
            torch.autograd.grad(
                [outputs[index] for index in forward.gradients],
                [one for one in given if one.requires_grad],
                [*forward.gradients.values()],
                allow_unused=True,
            )
        return f", by {first.found}" if first.found else ""


class _FirstWrong:
    """The first operation whose result is wrong and whose arguments are not."""

    def __init__(self, wrong: _Wrong, backward: bool = False) -> None:
        self._is_wrong = wrong
        self._backward = backward
        self._sound = False
        self.found = ""

    def looks(self) -> Any:
        """Returns the mode in which it looks at each operation."""
        return calls_with(self._before, self._after) or nullcontext()

    def _before(self, _operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._sound = not self.found and not _holds(self._is_wrong, (args, kwargs))

    def _after(self, operator: Any, result: Any) -> None:
        if self._sound and _holds(self._is_wrong, result):
            text = _autograd_text() if self._backward else ""
            self.found = text or f"{operator.overloadpacket.__name__}{_line_above()}"


def _line_above() -> str:
    frame = call_site.find(sys._getframe(2))
    if frame is None:
        return ""
    return at_site(CallSite(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


def _autograd_text() -> str:
    """`SqrtBackward0 at train.py:12 in forward`, with the user's line in the forward; "" where
    autograd runs no function."""
    name, told = backward_function() or ("", [])
    frames = _FRAME.findall("".join(told))
    users = [one for one in frames if call_site.frame_kind(one[0]) == call_site.USER]
    place = CallSite(users[-1][0], int(users[-1][1]), users[-1][2]) if users else None
    return f"{name}{at_site(place)}" if name else ""


@contextmanager
def _kept(module: Module) -> Iterator[None]:
    """Gives a module's buffers back as they were: to call it may change statistics."""
    before = [(one, one.clone()) for one in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, was in before:
                one.copy_(was)


def _holds(wrong: _Wrong, value: Any) -> bool:
    return any(wrong(one) for one in tensors_of(value))


def _not_finite(one: Tensor) -> bool:
    return first_wrong(one, inf_too=True) is not None


def _nan(one: Tensor) -> bool:
    return first_wrong(one, inf_too=False) is not None


def _batch(forward: Forward) -> str:
    """`batch 12: float32[8, 16] from -3.1 to 4.2`."""
    texts = []
    for one in tensors_of((forward.args, forward.kwargs)):
        text = f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}"
        if one.is_floating_point() and one.numel() and one.layout is torch.strided:
            sound = one.detach().float()
            sound = sound[sound.isfinite()]
            if sound.numel():
                least, most = sound.aminmax()
                text += f" from {least.item():.4g} to {most.item():.4g}"
            if sound.numel() < one.numel():
                text += f", {one.numel() - sound.numel()} not finite"
        texts.append(text)
    return f"batch {forward.number}: {', '.join(texts[:4]) or 'no tensor'}"
