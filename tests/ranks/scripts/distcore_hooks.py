"""Scenarios of test_distcore_backend.py: callbacks of futures that call, and what torch builds on
them: every communication hook of DDP, ZeRO that overlaps with the backward pass, post-local SGD."""

import threading
from functools import partial

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

import distcore as dist
from tests.ranks.scripts.distcore_support import raises

STEPS = 5
WIDTH = 16
RATE = 0.05
EXACT, CLOSE, LOSSY = 1e-6, 2e-2, None
"""How near to the plain averaging of gradients a hook's result is."""


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def _loss(net, step, rank):
    torch.manual_seed(100 * step + rank)
    return net(torch.randn(4, WIDTH)).square().mean()


def _expected(size, steps=STEPS):
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(_loss(net, step, rank) for rank in range(size)) / size).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def _same_everywhere(net, size):
    for parameter in net.parameters():
        every = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(every, parameter.detach())
        assert all(torch.equal(every[0], one) for one in every)


def _near(net, size, tolerance):
    _same_everywhere(net, size)
    if tolerance is not None:
        for found, expected in zip(net.parameters(), _expected(size), strict=True):
            assert torch.allclose(found, expected, atol=tolerance), (found - expected).abs().max()


def _train(register, rank, size, tolerance, **how):
    net = _net()
    ddp = nn.parallel.DistributedDataParallel(net, **how)
    steps = register(ddp)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE) if steps is None else steps
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(ddp, step, rank).backward()
        optimizer.step()
    _near(net, size, tolerance)


def _hooks():
    """All that a backend can run on CPU. DDP refuses bf16 and mixed precision there; the quantizing
    ones want the future of an all_gather to hold one tensor, which only torch's NCCL has; the
    batched powerSGD fails its own assertion in torch 2.13."""
    power = powerSGD_hook.PowerSGDState
    compressed = {"start_powerSGD_iter": 2, "min_compression_rate": 0.5}
    fp16 = default_hooks.fp16_compress_wrapper
    return {
        "allreduce": (None, default_hooks.allreduce_hook, EXACT),
        "fp16": (None, default_hooks.fp16_compress_hook, CLOSE),
        "fp16 of allreduce": (None, fp16(default_hooks.allreduce_hook), CLOSE),
        "powerSGD": (power(None, 1, **compressed), powerSGD_hook.powerSGD_hook, LOSSY),
        "powerSGD, rank 2": (
            power(None, 2, **compressed, batch_tensors_with_same_shape=True),
            powerSGD_hook.powerSGD_hook,
            LOSSY,
        ),
        "fp16 of powerSGD": (power(None, 1, **compressed), fp16(powerSGD_hook.powerSGD_hook),
                             LOSSY),
        "post local": (
            post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=STEPS + 1),
            post_localSGD_hook.post_localSGD_hook,
            EXACT,
        ),
    }  # fmt: skip


def scenario_hooks(rank, size):
    """In one bucket: a callback's calls and those of the backward pass have no order."""
    for name, (state, hook, tolerance) in _hooks().items():
        try:
            _train(partial(_register, state, hook), rank, size, tolerance)
        except BaseException as error:
            raise AssertionError(f"with the hook {name!r}") from error


def scenario_hooks_in_buckets(rank, size):
    """Callbacks that make no call, of several buckets."""
    for name in ("allreduce", "fp16"):
        state, hook, tolerance = _hooks()[name]
        _train(partial(_register, state, hook), rank, size, tolerance, bucket_cap_mb=0.001)
    net = nn.parallel.DistributedDataParallel(_net())
    net.register_comm_hook(None, debugging_hooks.noop_hook)
    _loss(net, 0, rank).backward()


def _register(state, hook, ddp):
    ddp.register_comm_hook(state, hook)


def scenario_optimizer_in_backward(rank, size):
    def register(ddp):
        ddp._register_fused_optim(torch.optim.SGD, lr=RATE)
        return _Cleared(ddp)

    _train(register, rank, size, EXACT)


class _Cleared:
    def __init__(self, net):
        self._net = net

    def zero_grad(self):
        self._net.zero_grad()

    def step(self):
        """DDP has made it."""


def scenario_zero(rank, size):
    """Its own steps, those that overlap with the backward pass, and both of their hooks."""
    net = nn.parallel.DistributedDataParallel(_net())
    for overlap, hook in (
        (False, None),
        (True, ddp_zero_hook.hook_with_zero_step),
        (True, ddp_zero_hook.hook_with_zero_step_interleaved),
    ):
        net = nn.parallel.DistributedDataParallel(_net())
        optimizer = ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.SGD, overlap_with_ddp=overlap, lr=RATE
        )
        if hook is not None:
            net.register_comm_hook(None, hook(default_hooks.allreduce_hook, net, optimizer))
        # The first two steps of one that overlaps only learn where the buckets are.
        for step in ([0, 0] if overlap else []) + list(range(STEPS)):
            net.zero_grad()
            _loss(net, step, rank).backward()
            if not overlap:
                optimizer.step()
        _near(net.module, size, EXACT)


def scenario_post_local_sgd(rank, size):
    net = _net()
    ddp = nn.parallel.DistributedDataParallel(net)
    state = post_localSGD_hook.PostLocalSGDState(
        None, dist.new_group([rank], use_local_synchronization=True), 2
    )
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(net.parameters(), lr=RATE),
        PeriodicModelAverager(period=2, warmup_steps=2),
    )
    for step in range(7):
        optimizer.zero_grad()
        _loss(ddp, step, rank).backward()
        optimizer.step()
    _same_everywhere(net, size)


def scenario_callbacks_that_call(rank, size):
    """And wait: for the call, for its future, for a callback of that, and for a sibling's."""

    def again(_future):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        deeper = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: deep(done))
        return deeper.wait()

    def deep(done):
        tensor = done.value()[0].clone()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        return tensor

    for _ in range(3):
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
        assert future.wait().item() == size**5
    order = []
    futures = [
        dist.all_reduce(torch.ones(100_000), async_op=True)
        .get_future()
        .then(lambda _done, index=index: order.append(index))
        for index in range(20)
    ]
    torch.futures.wait_all(futures)
    assert order == list(range(20)), order

    def fails(_future):
        raise ValueError("the callback's own")

    with raises(RuntimeError, "the callback's own"):
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(fails).wait()
    dist.barrier()


def scenario_callback_that_waits_for_a_later_call(rank, size):
    """Whose own future comes behind it. Not for NCCL, whose callbacks run where they are given."""
    second, found = threading.Event(), []

    def waits_for_the_second(_done):
        if threading.current_thread() is threading.main_thread():
            return None  # the first call was complete already: this runs where it is given
        return second.wait(30) and found[0].wait()

    one = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    waits = one.get_future().then(waits_for_the_second)
    found.append(dist.all_reduce(torch.ones(1), async_op=True).get_future())
    second.set()
    result = waits.wait()
    assert result is None or result[0].item() == size, result
    dist.barrier()
