"""Every algorithm, on 1 to 8 ranks, against what one process computes; its steps and bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil, log2

import pytest
import torch
import torch.distributed as dist

from distcore.algorithms import board, choice, collectives, direct, pieces, recursive, ring, tree
from distcore.algorithms.choice import choice_from
from distcore.base.buffers import bytes_of
from distcore.base.reduction import reduction_for
from tests.support.threads_transport import ThreadTransport, run_ranks

R = dist.ReduceOp
EVERY = [(op, name) for op, names in choice.ALGORITHMS.items() for name in sorted(names)]
RANKS = range(1, 9)
DTYPES = (
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.bool,
)


def given(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers: sums and products of 8 of them are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    numbers = torch.randint(0, 3, (count,), generator=generator)
    return numbers.to(dtype)


def reduced(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """The oracle: exact, then rounded once."""
    dtype = parts[0].dtype
    exact = torch.complex128 if dtype.is_complex else torch.float64
    stack = torch.stack(parts).to(exact)
    if op == "PRODUCT":
        return stack.prod(0).to(dtype)
    if op == "MAX":
        return stack.amax(0).to(dtype)
    total = stack.sum(0).to(dtype)
    if op == "SUM":
        return total
    if dtype.is_complex:
        return torch.view_as_complex(torch.view_as_real(total) / len(parts))
    if dtype.is_floating_point:
        return total / len(parts)
    return total.div(len(parts), rounding_mode="trunc")


def ops_for(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.is_complex:
        return ("SUM", "AVG")
    return ("SUM", "PRODUCT", "MAX") if dtype is torch.bool else ("SUM", "AVG", "PRODUCT", "MAX")


class Case:
    """One call with random arguments: `call` on a rank, which checks its own result."""

    def __init__(self, op: str, size: int, pick: random.Random, count: int | None = None) -> None:
        self.op, self.size = op, size
        self.dtype = pick.choice(DTYPES)
        self.count = (
            count
            if count is not None
            else pick.choice([0, 1, size - 1, size, size + 1, 37, pick.randrange(2000)])
        )
        self.counts = [pick.choice([0, 1, 5, self.count]) for _ in range(size)]
        self.pairs = [
            [pick.choice([0, 1, 9, self.count]) for _ in range(size)] for _ in range(size)
        ]
        self.root = pick.randrange(size)
        self.reduce_op = pick.choice(ops_for(self.dtype))
        self.reduction = reduction_for(getattr(R, self.reduce_op), self.dtype)
        self.in_place = pick.random() < 0.5

    def __repr__(self) -> str:
        return (
            f"{self.op} {self.dtype} {self.count} {self.counts} root {self.root} {self.reduction}"
        )

    def mine(self, rank: int, salt: int = 0, count: int | None = None) -> torch.Tensor:
        return given(rank, self.count if count is None else count, self.dtype, salt)

    def empty(self, count: int) -> torch.Tensor:
        return torch.full((count,), 1, dtype=self.dtype)

    def call(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        getattr(self, self.op)(net, wish)

    def expect(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(got, expected), f"{self}: {got} is not {expected}"

    def all_reduce(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        tensor = self.mine(net.rank)
        collectives.all_reduce(net, tensor, self.reduction, wish)
        self.expect(tensor, reduced(self.reduce_op, [self.mine(r) for r in range(self.size)]))

    def reduce(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        tensor = self.mine(net.rank)
        collectives.reduce(net, tensor, self.root, self.reduction, wish)
        if net.rank == self.root:
            self.expect(tensor, reduced(self.reduce_op, [self.mine(r) for r in range(self.size)]))
        else:
            assert torch.equal(tensor, self.mine(net.rank)), f"{self}: a non-root's tensor changed"

    def broadcast(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        tensor = self.mine(net.rank)
        collectives.broadcast(net, tensor, self.root, wish)
        assert torch.equal(tensor, self.mine(self.root)), self

    def all_gather(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        outputs = list(self.empty(sum(self.counts)).split(self.counts))
        tensor = self.mine(net.rank, count=self.counts[net.rank])
        if self.in_place:
            outputs[net.rank].copy_(tensor)
            tensor = outputs[net.rank]
        collectives.all_gather(net, outputs, tensor, wish)
        for rank, output in enumerate(outputs):
            assert torch.equal(output, self.mine(rank, count=self.counts[rank])), self

    def gather(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        root = net.rank == self.root
        outputs = [self.empty(self.count) for _ in range(self.size)] if root else None
        collectives.gather(net, outputs, self.mine(net.rank), self.root, wish)
        for rank, output in enumerate(outputs or ()):
            assert torch.equal(output, self.mine(rank)), self

    def scatter(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        root = net.rank == self.root
        inputs = [self.mine(rank) for rank in range(self.size)] if root else None
        output = self.empty(self.count)
        collectives.scatter(net, output, inputs, self.root, wish)
        assert torch.equal(output, self.mine(net.rank)), self

    def reduce_scatter(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        inputs = [self.mine(net.rank, to, count) for to, count in enumerate(self.counts)]
        output = self.empty(self.counts[net.rank])
        collectives.reduce_scatter(net, output, inputs, self.reduction, wish)
        for to, count in enumerate(self.counts):
            assert torch.equal(inputs[to], self.mine(net.rank, to, count)), f"{self}: input changed"
        parts = [self.mine(r, net.rank, self.counts[net.rank]) for r in range(self.size)]
        self.expect(output, reduced(self.reduce_op, parts))

    def all_to_all(self, net: ThreadTransport, wish: choice.Chooser) -> None:
        rank, pairs = net.rank, self.pairs
        inputs = [self.mine(rank, to, pairs[rank][to]) for to in range(self.size)]
        outputs = [self.empty(pairs[source][rank]) for source in range(self.size)]
        collectives.all_to_all(net, outputs, inputs, wish)
        for source, output in enumerate(outputs):
            assert torch.equal(output, self.mine(source, rank, pairs[source][rank])), self


def run_cases(cases: list[Case], size: int, wish: choice.Chooser) -> None:
    def body(net: ThreadTransport) -> list[int]:
        steps = []
        for case in cases:
            before = net.steps
            case.call(net, wish)
            steps.append(net.steps - before)
        return steps

    steps = run_ranks(size, body)
    assert all(counted == steps[0] for counted in steps), f"ranks differ in their steps: {steps}"


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_random_calls(op: str, name: str, size: int) -> None:
    pick = random.Random(f"{op} {name} {size}")
    run_cases([Case(op, size, pick) for _ in range(8)], size, choice_from(f"{op}:{name}"))


# For small messages, as their docstrings say.
UNBOUNDED = {
    ("all_reduce", "hub"),
    ("all_gather", "bruck"),
    ("gather", "tree"),
    ("scatter", "tree"),
    ("reduce_scatter", "halving"),
}


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_more_than_the_scratch_goes_in_blocks(
    op: str, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pieces, recursive, tree):
        monkeypatch.setattr(module, "SCRATCH_BYTES", 512)
    monkeypatch.setattr(tree, "CHAIN_BLOCK_BYTES", 192)
    monkeypatch.setattr(board, "BLOCK_BYTES", 512)
    taken: list[int] = []

    def take(length_bytes: int) -> memoryview:
        taken.append(length_bytes)
        return memoryview(bytearray(b"\xdd" * length_bytes))

    for module in (direct, recursive, ring, tree):
        if hasattr(module, "take_scratch"):
            monkeypatch.setattr(module, "take_scratch", take)
    monkeypatch.setattr(pieces, "_scratches", [])
    pick = random.Random(f"{op} {name} {size}")
    cases = [Case(op, size, pick, count) for count in (400, 129, 64, 65, 701)]
    run_cases(cases, size, choice_from(f"{op}:{name}"))
    if (op, name) not in UNBOUNDED:
        assert max(taken, default=0) <= 512


@pytest.mark.parametrize("size", [2, 3])
def test_messages_of_many_pieces(size: int) -> None:
    """With the real sizes of pieces, blocks and scratch."""
    pick = random.Random(size)
    for op, name in EVERY:
        case = Case(op, size, pick, 200_001)
        case.dtype, case.reduce_op = torch.float32, "SUM"
        case.reduction = reduction_for(R.SUM, torch.float32)
        run_cases([case], size, choice_from(f"{op}:{name}"))


@pytest.mark.parametrize("name", sorted(choice.ALGORITHMS["all_reduce"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_all_ranks_get_the_same_bits(name: str, dtype: torch.dtype) -> None:
    """Also where operands do not commute: signs of zeros, payloads of NaNs, rounding."""
    wish = choice_from(name)

    def body(net: ThreadTransport) -> list[bytes]:
        results = []
        for op in (R.SUM, R.AVG, R.MIN, R.MAX, R.PRODUCT):
            generator = torch.Generator().manual_seed(net.rank)
            tensor = torch.randn(203, generator=generator).to(dtype)
            tensor[0:40] = 0.0 if net.rank % 2 else -0.0
            tensor[40 + net.rank :: 11] = float("nan") if net.rank % 2 else -float("nan")
            if net.rank == 1:
                tensor[100:] = -0.0
            collectives.all_reduce(net, tensor, reduction_for(op, dtype), wish)
            results.append(bytes(bytes_of(tensor)))
        return results

    for size in RANKS:
        results = run_ranks(size, body)
        assert all(result == results[0] for result in results)


def test_a_premultiplied_sum_through_every_reduction() -> None:
    reduction = reduction_for(dist._make_nccl_premul_sum(3.0), torch.float32)

    def body(net: ThreadTransport) -> None:
        tensor = torch.full((5,), float(net.rank + 1))
        collectives.all_reduce(net, tensor, reduction)
        assert tensor.tolist() == [30.0] * 5
        tensor = torch.full((5,), float(net.rank + 1))
        collectives.reduce(net, tensor, 2, reduction)
        assert tensor.tolist() == [30.0 if net.rank == 2 else net.rank + 1.0] * 5
        inputs = [torch.full((3,), float(net.rank + to)) for to in range(4)]
        output = torch.empty(3)
        collectives.reduce_scatter(net, output, inputs, reduction)
        assert output.tolist() == [3.0 * (6 + 4 * net.rank)] * 3
        assert inputs[1].tolist() == [net.rank + 1.0] * 3

    run_ranks(4, body)


def test_the_output_of_a_reduce_scatter_may_be_its_own_input() -> None:
    reduction = reduction_for(R.SUM, torch.int32)

    def body(net: ThreadTransport) -> None:
        for name in choice.ALGORITHMS["reduce_scatter"]:
            inputs = [torch.full((7,), net.rank + to, dtype=torch.int32) for to in range(net.size)]
            wish = choice_from(f"reduce_scatter:{name}")
            collectives.reduce_scatter(net, inputs[net.rank], inputs, reduction, wish)
            expected = sum(source + net.rank for source in range(net.size))
            assert inputs[net.rank].tolist() == [expected] * 7

    for size in (2, 3, 4):
        run_ranks(size, body)


@pytest.mark.parametrize("size", RANKS)
def test_nobody_leaves_a_barrier_before_all_have_come(size: int) -> None:
    came: list[int] = []

    def body(net: ThreadTransport) -> int:
        came.append(net.rank)
        collectives.barrier(net)
        assert len(came) == size
        return net.steps

    assert run_ranks(size, body) == [ceil(log2(size))] * size


# -- steps and bytes, as the docstrings state them -----------------------------------------------

ITEMS = 840  # a multiple of 2 to 8
WHOLE = ITEMS * 4


def power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def logarithm(n: int) -> int:
    return ceil(log2(n))


Cost = Callable[[int], float]
Costs = dict[tuple[str, str], tuple[Cost, Cost]]
# (op, algorithm): steps, and the most bytes that one rank sends, of n ranks. WHOLE is N; a part is
# WHOLE / n where there is one per rank.
COSTS: Costs = {
    ("all_reduce", "direct"): (lambda n: 1, lambda n: (n - 1) * WHOLE),
    ("all_reduce", "hub"): (lambda n: 2, lambda n: (n - 1) * WHOLE),
    ("all_reduce", "board"): (lambda n: 4, lambda n: 2 * (n - 1)),
    ("broadcast", "board"): (lambda n: 2, lambda n: n - 1),
    ("all_gather", "board"): (lambda n: 2, lambda n: n - 1),
    ("reduce_scatter", "board"): (lambda n: 2, lambda n: n - 1),
    ("all_to_all", "board"): (lambda n: 2, lambda n: n - 1),
    ("all_reduce", "two_step"): (lambda n: 2, lambda n: 2 * WHOLE * (n - 1) / n),
    ("all_reduce", "doubling"): (
        lambda n: log2(power(n)) + 2 * (n != power(n)),
        lambda n: WHOLE * log2(power(n)) + WHOLE * (n != power(n)),
    ),
    ("all_reduce", "halving"): (
        lambda n: 2 * log2(power(n)) + 2 * (n != power(n)),
        lambda n: 2 * WHOLE * (power(n) - 1) / power(n) + WHOLE * (n != power(n)),
    ),
    ("all_reduce", "ring"): (lambda n: 2 * (n - 1), lambda n: 2 * WHOLE * (n - 1) / n),
    ("reduce", "tree"): (logarithm, lambda n: WHOLE),
    ("reduce", "chain"): (lambda n: 1 + n - 2, lambda n: WHOLE),
    ("broadcast", "direct"): (lambda n: 1, lambda n: (n - 1) * WHOLE),
    ("broadcast", "tree"): (logarithm, lambda n: WHOLE * logarithm(n)),
    ("broadcast", "chain"): (lambda n: 1 + n - 2, lambda n: WHOLE),
    ("broadcast", "ring"): (lambda n: logarithm(n) + n - 1, lambda n: 2 * WHOLE * (n - 1) / n),
    ("all_gather", "direct"): (lambda n: 1, lambda n: WHOLE * (n - 1) / n),
    ("all_gather", "bruck"): (logarithm, lambda n: WHOLE * (n - 1) / n),
    ("all_gather", "ring"): (lambda n: n - 1, lambda n: WHOLE * (n - 1) / n),
    ("gather", "direct"): (lambda n: 1, lambda n: WHOLE / n),
    ("gather", "tree"): (
        logarithm,
        lambda n: max(min(v & -v, n - v) for v in range(1, n)) * WHOLE / n,
    ),
    ("scatter", "direct"): (lambda n: 1, lambda n: WHOLE * (n - 1) / n),
    ("scatter", "tree"): (logarithm, lambda n: WHOLE * (n - 1) / n),
    ("reduce_scatter", "direct"): (lambda n: 1, lambda n: WHOLE * (n - 1) / n),
    ("reduce_scatter", "ring"): (lambda n: n - 1, lambda n: WHOLE * (n - 1) / n),
    ("reduce_scatter", "halving"): (
        lambda n: log2(n) if n == power(n) else 1 if n == 3 else 2,  # else the table's: direct, ...
        lambda n: WHOLE * (n - 1) / n if n == power(n) or n == 3 else n - 1,  # ... or board
    ),
    ("all_to_all", "direct"): (lambda n: 1, lambda n: WHOLE * (n - 1) / n),
    ("all_to_all", "pairwise"): (lambda n: n - 1, lambda n: WHOLE * (n - 1) / n),
}


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_steps_and_bytes_are_as_documented(op: str, name: str, size: int) -> None:
    wish = choice_from(f"{op}:{name}")
    case = Case(op, size, random.Random(size), ITEMS)
    case.dtype, case.reduce_op = torch.int32, "SUM"
    case.reduction = reduction_for(R.SUM, torch.int32)
    if op in ("gather", "scatter"):
        case.count = ITEMS // size
    case.counts = [ITEMS // size] * size
    case.pairs = [case.counts] * size

    def body(net: ThreadTransport) -> tuple[int, int]:
        case.call(net, wish)
        return net.steps, net.sent_bytes

    counted = run_ranks(size, body)
    steps, most_bytes = COSTS[op, name]
    assert {step for step, _ in counted} == {steps(size)}
    assert max(sent for _, sent in counted) == pytest.approx(most_bytes(size))
