"""The events of a training loop between its calls: batches, steps, losses that are scaled; what
DistributedDataParallel's logger knows and its reducer still waits for, and the parameters that
FSDP, the first one and the second, shards together."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from math import prod
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
import torch.autograd
import torch.nn.parallel

from ...hook.loading import when_imported
from .probe import DIST, Private, WatchedPart, Wrapped, after, before, dist, instead

_AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"
_LOCAL_SGD = "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook"
# torch exports these names at run time, but its stubs do not say so.
DDP: Any = torch.nn.parallel.DistributedDataParallel

DATA_END = WatchedPart(
    "data_end",
    "it is not known which rank ran out of data",
    Private("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", ("self",)),
)
AVERAGING = WatchedPart(
    "model_averaging",
    "replicas that are averaged now and then are compared as if they were not",
    Private(_AVERAGERS, "ModelAverager.__init__", ("self",)),
    Private(_LOCAL_SGD, "PostLocalSGDState.__init__", ("self",)),
)
SCALING = WatchedPart(
    "loss_scaling",
    "a GradScaler is not noticed, whose overflows are none",
    Private("torch.amp", "GradScaler._lazy_init_scale_growth_tracker", ("self",)),
)
JOINING = WatchedPart(
    "joined_steps",
    "steps that Join makes for a rank without inputs are taken for the program's own",
    Private("torch.distributed.algorithms.join", "Join.__exit__", ("self",)),
)
_STATES = "torch.distributed.checkpoint.state_dict"
FILLING = WatchedPart(
    "steps_of_checkpoints",
    "a step that makes empty optimiser state, for a checkpoint, is taken for the program's own",
    Private(_STATES, "_init_optim_state"),
)
BACKWARD = WatchedPart(
    "backward_calls",
    "gradients that a program has forgotten to sum are not noticed",
    Private("torch", "_C._current_graph_task_id"),
)

FUNCTION = WatchedPart(
    "backward_function",
    "which function of autograd has made a NaN is not told",
    Private("torch", "_C._current_autograd_node"),
)


@DATA_END
def on_data_end(note: Callable[[int], None]) -> None:
    """Hear of a DataLoader's iterator that has no more batches; with how many it gave."""
    from torch.utils.data import dataloader

    def following(original: Wrapped, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except StopIteration:
            note(int(getattr(self, "_num_yielded", 0)))
            raise

    instead(dataloader._BaseDataLoaderIter, "__next__", following)


def on_model_replicated(note: Callable[[Any], None]) -> None:
    """Hear of every DDP model, once it is made."""

    after(DDP, "__init__", lambda _, model, *__, **___: note(model))


@AVERAGING
def on_models_averaged(note: Callable[[], None]) -> None:
    """Hear of torch's own averagers of models (local SGD), as they are made."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging import averagers

    before(averagers.ModelAverager, "__init__", lambda *_, **__: note())
    before(post_localSGD_hook.PostLocalSGDState, "__init__", lambda *_, **__: note())


def averages_models() -> bool:
    """Whether the program has one of torch's own averagers of models."""
    modules = ((_AVERAGERS, "ModelAverager"), (_LOCAL_SGD, "PostLocalSGDState"))
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in modules)
    return any(living(kind) for kind in kinds if kind is not None)


@SCALING
def on_loss_scaling(note: Callable[[], None]) -> None:
    """Hear of each enabled GradScaler, FSDP's included: of one that is there, and of others at
    their first loss."""
    before(torch.amp.GradScaler, "_lazy_init_scale_growth_tracker", lambda *_, **__: note())
    if any(one.is_enabled() for one in living(torch.amp.GradScaler)):
        note()


T = TypeVar("T")


def living(kind: type[T]) -> list[T]:
    """Returns all objects of this class. Looks at all objects of the process: some hundredths of a
    second."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def on_optimizer_steps(
    begins: Callable[[Any], None], ends: Callable[[Any], None]
) -> Callable[[], None]:
    """Hear of each step of each optimiser. Returns what takes that back."""
    from torch.optim import optimizer

    def hook(tell: Callable[[Any], None]) -> Callable[..., None]:
        def call(stepping: Any, _args: Any, _kwargs: Any) -> None:
            if not torch.compiler.is_compiling():  # dynamo must not meet what follows
                tell(stepping)

        return call

    first = optimizer.register_optimizer_step_pre_hook(hook(begins))
    second = optimizer.register_optimizer_step_post_hook(hook(ends))

    def take_back() -> None:
        first.remove()
        second.remove()

    return take_back


def cannot_look(hook: FrameType) -> bool:
    """Whether a step is no whole one of the program's, or its parameters cannot be read now. `hook`
    is the frame of the function that torch called.

    A step within another optimiser's is a part of that: ZeroRedundancyOptimizer's own brings the
    ranks together. One that Join makes for a rank without further inputs shadows those of the
    others: no backward came before it, and what gradients are there belong to nobody. One with a
    learning rate of 0 makes the state that a checkpoint is then loaded into. The capture
    of a CUDA graph must not meet a wait for the device.
    """
    step = hook.f_back
    others = (_shadowing(), _filling())
    above = step.f_back if step is not None else None
    while above is not None:
        if step is not None and (above.f_code is step.f_code or above.f_code in others):
            return True
        above = above.f_back
    return capturing()


@functools.cache
@JOINING
def _shadowing() -> CodeType | None:
    """Returns the code that runs while Join makes the steps of a rank without inputs."""
    return getattr(JOINING.needs[0].find(), "__code__", None)


def _filling() -> CodeType | None:
    """Returns the code that makes empty optimiser state, once the program has loaded it."""
    loaded = _STATES in sys.modules and FILLING.works
    return getattr(FILLING.needs[0].find(), "__code__", None) if loaded else None


@BACKWARD
def current_backward() -> int | None:
    """A number of the backward that runs on this thread; negative where none does, None where torch
    does not tell."""
    try:
        return int(torch._C._current_graph_task_id())
    except RuntimeError:
        return None


@FUNCTION
def backward_function() -> tuple[str, list[str]] | None:
    """The function of autograd that runs on this thread, and the traceback of its forward, where
    anomaly detection was on; None outside of a backward."""
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return None
    return node.name(), [str(one) for one in node.metadata.get("traceback_", ())]


def capturing() -> bool:
    """Whether this thread captures a CUDA graph."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def asks_beside_captures() -> bool:
    """Lets this thread ask for CUDA's events while other threads capture graphs, which CUDA takes
    by default for a mistake that ends the capture; whether there is no more to do for that."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return False
    with contextlib.suppress(OSError, AttributeError):  # another vendor's GPUs
        thread_local = ctypes.c_int(1)  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(thread_local))
    return True


_DDP = "torch.nn.parallel.distributed"
_MODEL = "DistributedDataParallel"
STATISTICS = WatchedPart(
    "ddp",
    "what DistributedDataParallel knows of its models is not told",
    Private(DIST, "Logger._get_ddp_logging_data", ("self",), called=True),
    Private(DIST, "Logger.set_runtime_stats_and_log", ("self",)),
)
JOIN = WatchedPart(
    "join",
    "notices of Join that nobody waits for are taken for handles that were dropped",
    Private("torch.distributed.algorithms.join", "Join.notify_join_context", ("joinable",)),
)
UNUSED = WatchedPart(
    "ddp_unused",
    "parameters without gradient are not looked for",
    Private(_DDP, f"{_MODEL}._build_params_for_reducer", ("self",), called=True),
    Private(
        _DDP,
        f"{_MODEL}._build_debug_param_to_name_mapping",
        ("self", "parameters"),
        called=True,
    ),
    Private(_DDP, f"{_MODEL}._check_reducer_finalized", ("self",), called=True),
)

_INDICES = re.compile(r"indices which did not receive grad for rank \d+: ([\d ]+)")


@JOIN
def on_join_notices(note: Callable[[Any], None]) -> None:
    """`note(work)` is called with what Join gives to a model that tells it of an iteration. torch's
    own pages, and its ZeroRedundancyOptimizer, do not wait for it."""
    from torch.distributed.algorithms.join import Join

    after(Join, "notify_join_context", lambda work, *_, **__: note(work))
    Join.notify_join_context = staticmethod(Join.notify_join_context)  # type: ignore[method-assign]


@STATISTICS
def on_statistics(observe: Callable[[Any], None]) -> None:
    """`observe(logger)` is called in every forward, behind torch's own look at the last one."""

    after(dist.Logger, "set_runtime_stats_and_log", lambda _, logger, *__, **___: observe(logger))


@UNUSED
def on_backward_end(
    observe: Callable[[], None], failed: Callable[[str, BaseException], None]
) -> None:
    """`observe()` is called at the end of every backward that is in no other one; `failed` hears
    of an exception that leaves it."""
    running: list[None] = []

    def backward(original: Wrapped, *args: Any, **kwargs: Any) -> Any:
        running.append(None)
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            failed("backward", error)
            raise
        finally:
            running.pop()
        if not running:
            observe()
        return result

    instead(torch.autograd, "backward", backward)


def on_backward(observe: Callable[[Any], None]) -> None:
    """`observe(tensors)` hears of the tensor, or the tensors, on which each backward is called."""
    before(torch.autograd, "backward", lambda tensors, *_, **__: observe(tensors))


def on_module_calls(
    begins: Callable[[Any, bool], None], ends: Callable[[Any, Any, Any, Any, bool], None]
) -> Callable[[], None]:
    """`begins(module, outermost)` comes before each forward, and `ends(module, args, kwargs,
    output, outermost)` behind one that has returned; `outermost`: no other module has called it, on
    its thread. Returns what takes that back."""
    from torch.nn.modules import module as modules

    local = threading.local()

    def before_it(module: Any, _args: Any) -> None:
        if not torch.compiler.is_compiling():
            stack = local.__dict__.setdefault("stack", [])
            stack.append(module)
            begins(module, len(stack) == 1)

    def behind_it(module: Any, args: Any, *rest: Any) -> None:
        # `rest`: the keyword arguments, where torch gives them, and what the module returns.
        stack = local.__dict__.get("stack", [])
        if torch.compiler.is_compiling() or module not in stack:
            return
        while stack.pop() is not module:  # what an exception has left tells no end
            pass
        ends(module, args, rest[0] if len(rest) > 1 else {}, rest[-1], not stack)

    first = modules.register_module_forward_pre_hook(before_it)
    last = modules.register_module_forward_hook(behind_it, with_kwargs=True, always_call=True)

    def take_back() -> None:
        first.remove()
        last.remove()

    return take_back


def on_saves(note: Callable[[], None]) -> None:
    """Hear of each `torch.save`, torch.distributed.checkpoint's own among them."""
    import torch.serialization

    for module in (torch, torch.serialization):
        before(module, "save", lambda *_, **__: note())


def on_loads(note: Callable[[list[torch.Tensor]], None]) -> None:
    """`note(parameters)` hears of those of each module and optimiser that has loaded a state."""

    def into_optimizer(_: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        note([one for group in optimizer.param_groups for one in group["params"]])

    after(torch.optim.Optimizer, "load_state_dict", into_optimizer)
    after(torch.nn.Module, "load_state_dict", lambda _, one, *__, **___: note([*one.parameters()]))


_PRODUCTS = re.compile("(Mm|Addmm|Bmm|Baddbmm|Linear|Convolution|Attention)[A-Za-z]*Backward")
_KINKS = re.compile(
    "^(Relu|LeakyRelu|Prelu|Threshold|Hardtanh|Hardswish|Hardsigmoid|Abs|Clamp|Maximum|Minimum|Max|"
    "AdaptiveMax|FractionalMax|Amax|Topk|Sort|L1Loss|Huber|Compiled)"
)
"""The operations whose derivative jumps somewhere. A compiled function may have some."""
MOST_NODES = 20_000


def graph_of(loss: torch.Tensor) -> tuple[str, int, int, int]:
    """Returns the dtype in which most matrix products of this tensor's graph were made ("" where
    it has none), the count of its nodes, the elements of its largest intermediate result, and the
    count of operations whose derivative jumps, as that of ReLU."""
    seen: set[Any] = set()
    left = [loss.grad_fn]
    products: Counter[str] = Counter()
    largest, kinks = 1, 0
    while left and len(seen) < MOST_NODES:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kinks += _KINKS.match(node.name()) is not None
        left += [following for following, _ in node.next_functions]
        for made in getattr(node, "_input_metadata", ()):  # of what the operation has returned
            shape = tuple(made.shape)
            largest = max(largest, prod(one for one in shape if isinstance(one, int)))
            if _PRODUCTS.search(node.name()):
                dtype = str(made.dtype).removeprefix("torch.")
                tensor_float = made.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
                products["tfloat32" if tensor_float and dtype == "float32" else dtype] += 1
    return products.most_common(1)[0][0] if products else "", len(seen), largest, kinks


def facts(logger: Any) -> dict[str, str | int]:
    """All that torch's logger knows: texts, and numbers (bytes, nanoseconds, 0 and 1)."""
    data = logger._get_ddp_logging_data()
    return {**data.strs_map, **data.ints_map}


def parameter_names(model: Any) -> dict[int, str]:
    """The qualified names of the parameters that are reduced, by the parameters' ids, in the order
    of the reducer's indices."""
    parameters, _ = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    return {id(one): str(names[n]).removeprefix(".") for n, one in enumerate(parameters)}


def without_gradient(model: Any) -> list[int] | None:
    """Indices of the parameters for whose gradient the reducer still waits in a backward that has
    begun; None where it waits for none. Empty where torch does not say which."""
    try:
        model._check_reducer_finalized()
    except RuntimeError as error:
        found = _INDICES.search(str(error))
        return [int(index) for index in found[1].split()] if found else []
    return None


def model_that_refused(error: BaseException) -> Any:
    """The DistributedDataParallel whose own code raised this error; None for any other error."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") != DDP.__module__:
        return None
    model = frames[-1].f_locals.get("self")
    return model if isinstance(model, DDP) else None


MESHES = WatchedPart(
    "meshes",
    "axes of device meshes have the names of their groups",
    Private("torch.distributed.device_mesh", "DeviceMesh.__init__", ("self",)),
)


def on_mesh(note: Callable[[Any], None]) -> None:
    """Hear of every device mesh, once it is made."""

    def watch(module: Any) -> None:
        if MESHES.works:
            after(module.DeviceMesh, "__init__", lambda _, mesh, *__, **___: note(mesh))

    when_imported("torch.distributed.device_mesh", watch)


LOCAL_TENSORS = WatchedPart(
    "local_tensors",
    "inputs that are said to be replicated, and are not, are not noticed",
    Private("torch.distributed.tensor", "DTensor.from_local", ("local_tensor",)),
)


def on_local_tensors(note: Callable[[Any], None]) -> None:
    """`note(made)` hears of each DTensor that a program makes `from_local()`."""

    def watch(module: Any) -> None:
        if LOCAL_TENSORS.works:
            after(module.DTensor, "from_local", lambda made, *_, **__: note(made))
            module.DTensor.from_local = staticmethod(module.DTensor.from_local)

    when_imported("torch.distributed.tensor", watch)


STATISTICS_OF_NORMS = WatchedPart(
    "running_statistics",
    "running statistics that differ at evaluation are not noticed",
    Private("torch.nn.modules.batchnorm", "_NormBase"),
)


@STATISTICS_OF_NORMS
def on_modes(note: Callable[[Any, bool], None]) -> None:
    """`note(module, mode)` hears of every `train()` and `eval()` of each module."""

    after(torch.nn.Module, "train", lambda _, module, mode=True: note(module, mode))


def running_statistics(model: Any) -> list[tuple[str, Any]]:
    """Returns the means and variances of batches that its norms keep, by their qualified names."""
    norms = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._NormBase)
    ]
    return [
        (f"{name}.{of_norm}".removeprefix("."), buffer)
        for name, norm in norms
        for of_norm, buffer in norm.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def on_forwards(note: Callable[[Any], None]) -> Callable[[], None]:
    """`note(module)` comes before the forward of every module. Returns what takes that back."""
    hook = torch.nn.modules.module.register_module_forward_pre_hook
    return hook(lambda module, _: note(module)).remove


def in_function(frame: FrameType | None, depth: int = 12) -> bool:
    """Whether one of these frames is the forward of an autograd function of the program's, which
    has its context as first argument."""
    while frame is not None and depth:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            context = frame.f_locals.get(code.co_varnames[0])
            if isinstance(context, torch.autograd.function.FunctionCtx):
                return True
        frame, depth = frame.f_back, depth - 1
    return False


_LOST = "the order in which ranks shard their parameters is not compared"
_FSDP1 = Private("torch.distributed.fsdp._flat_param", "FlatParamHandle.__init__")
_FSDP2 = Private("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup.__init__")
SHARDING = {
    "FullyShardedDataParallel": WatchedPart("fsdp", _LOST, _FSDP1),
    "fully_shard": WatchedPart("fully_shard", _LOST, _FSDP2),
}
_GROUPS = ("shard_process_group", "replicate_process_group")


def on_sharding(note: Callable[[str, Any, Any], None]) -> None:
    """`note(wrapper, group, named)` hears of them, by their names in the module that is wrapped:
    once for each group over which they are spread."""

    def hear(wrapper: str, _: Any, params: Any, modules: Any, *more: Any, **__: Any) -> None:
        with contextlib.suppress(Exception):  # another release gives them in another way
            owners = modules if isinstance(modules, tuple) else (modules,)
            names = {id(one): name for owner in owners for name, one in owner.named_parameters()}
            places = (getattr(one, name, one) for one in more for name in _GROUPS)
            for group in dict.fromkeys(one for one in places if isinstance(one, dist.ProcessGroup)):
                note(wrapper, group, [(names[id(one)], one) for one in params])

    def watch(wrapper: str, module: Any) -> None:
        if SHARDING[wrapper].works:
            owner = SHARDING[wrapper].needs[0].path.partition(".")[0]
            before(getattr(module, owner), "__init__", functools.partial(hear, wrapper))

    for wrapper, part in SHARDING.items():
        when_imported(part.needs[0].module, functools.partial(watch, wrapper))
