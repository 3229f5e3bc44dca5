"""Which steps of which optimisers are put on record as those of replicas."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from distdebug.rank.log import rank_log
from distdebug.rank.record.recorder import GroupRecord
from distdebug.rank.replicas import check, declarations
from distdebug.rank.replicas.check import ReplicaCheck
from distdebug.rank.replicas.declarations import DdpModel
from distdebug.rank.replicas.reduced_gradients import MOST_UNMATCHED, ReducedGradients
from distdebug.rank.torch_private import training
from distdebug.record.replicas import (
    CONSTANT,
    FROZEN,
    MATRIX,
    PARAMETER,
    PASSING,
    RANDOM_STATE,
    SUMMING,
    ReplicaReader,
)
from distdebug.record.signature import Signature
from distdebug.record.snapshot import Column, Digest


class Bench:
    """A process with DDP models: the check, and what the ranks' collectives have come to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slot = SimpleNamespace(issued=5)
        slot: Any = self.slot
        self.group = GroupRecord("0", "default_pg", 0, (0, 1), 0, slot, "gloo", None)
        self.world = self.group
        recorder: Any = self
        self.gradients = ReducedGradients()
        self.look = self.gradients.before(self.group)
        self.check = ReplicaCheck(recorder, directory, self.gradients)

    def safe_site(self, _frame: object) -> int:
        return 1

    def note(self, *_: object, **__: object) -> None:
        """Nobody reads the record here."""

    def model(self, module: nn.Module) -> Any:
        made: Any = Wrapped(module, self.group)
        trained = frozenset(name for name, _ in module.named_parameters())
        self.check._models.append(DdpModel(_reference(made), self.slot.issued, trained))
        return made

    def step(self, optimizer: torch.optim.Optimizer, collectives: int) -> None:
        self.slot.issued += collectives
        self.check.before_step(optimizer)
        self.check.after_step(optimizer)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        self.slot.issued += 1
        self._calls("allreduce", Signature("all_reduce", reduce_op=op), tensor)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.slot.issued += 1
        self._calls("broadcast", Signature("broadcast", root=0), tensor)

    def _calls(self, method: str, signature: Signature, tensor: torch.Tensor) -> None:
        known: Any = SimpleNamespace(text=signature.to_json())
        after = self.look(method, ([tensor],), known, self.slot.issued)
        if after is not None:
            after()

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.replicas"))

    def rows(self) -> list[Sequence[Digest]]:
        """Of each file."""
        return [ReplicaReader(path, lambda _: None, 0).digests() for path in self.files()]

    def moments(self) -> list[list[tuple[int, int]]]:
        """Of each file, those at which the ranks were together."""
        return [[row.moment for row in rows if not row.apart] for rows in self.rows()]


class Wrapped:
    """Stands for DDP."""

    def __init__(self, module: nn.Module, group: GroupRecord) -> None:
        self.module = module
        self.process_group = SimpleNamespace(_record=group)
        self.require_forward_param_sync = True
        self.logger = object()


def _reference(made: Any) -> Any:
    return lambda: made


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("DISTDEBUG_RAISE_OWN_FAULTS", "1")
    for module in (check, declarations):
        monkeypatch.setattr(module, "CheckedGroup", SimpleNamespace)
    monkeypatch.setattr(check.training, "cannot_look", lambda _frame: False)
    return Bench(tmp_path)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(rank_log, "write", lambda event, *_, **__: lines.append(event))
    return lines


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([one for each in modules for one in each.parameters()], lr=0.1)


def test_for_a_while_of_a_model_that_was_trained_before(bench: Bench) -> None:
    """What it was before its first step there counts as soon as that was made with the others. Two
    such whiles have one file, and nothing is looked at between them."""
    model = bench.model(nn.Linear(2, 2))
    optimizer = sgd(model.module)
    for begun in (105, 207):
        bench.slot.issued += 100
        end = bench.check.look_meanwhile()
        assert bench.slot.issued == begun
        bench.slot.issued += 2
        optimizer.step()
        end()
        optimizer.step()
    (rows,) = bench.rows()
    assert [(row.moment, row.step) for row in rows] == [
        *(((107, 0), 0), ((107, 1), 1)),
        *(((209, 0), 0), ((209, 1), 1)),
    ]


def test_for_a_while_of_a_model_whose_ranks_step_on_their_own(bench: Bench) -> None:
    model = bench.model(nn.Linear(2, 2))
    optimizer = sgd(model.module)
    bench.slot.issued += 100
    end = bench.check.look_meanwhile()
    optimizer.step()
    end()
    assert bench.moments() == [[]]


def test_for_a_while_of_models_that_are_averaged(bench: Bench, logged: list[str]) -> None:
    averagers = pytest.importorskip("torch.distributed.algorithms.model_averaging.averagers")
    kept = object.__new__(averagers.PeriodicModelAverager)
    end = bench.check.look_meanwhile()
    sgd(bench.model(nn.Linear(2, 2)).module).step()
    end()
    assert kept
    assert bench.files() == []
    assert logged == ["the check of replicas is off: the program averages its models itself"]


def test_synchronised_steps(bench: Bench, logged: list[str]) -> None:
    optimizer = sgd(bench.model(nn.Linear(2, 2)).module)
    for _ in range(3):
        bench.step(optimizer, collectives=2)
    assert bench.moments() == [[(7, 0), (7, 1), (9, 0), (11, 0)]]
    assert not logged


def test_local_steps(bench: Bench, logged: list[str]) -> None:
    """What the first one has made of the parameters is never told."""
    optimizer = sgd(bench.model(nn.Linear(2, 2)).module)
    for _ in range(4):
        bench.step(optimizer, collectives=0 if bench.check._steps else 1)
    bench.step(optimizer, collectives=3)
    assert bench.moments() == [[(6, 0)]]
    assert logged == ["the check of replicas is off: steps without synchronisation"]


def test_a_rank_on_its_own_says_so_for_a_while(bench: Bench) -> None:
    """The others may have made no such step: then it is compared with them again."""
    optimizer = sgd(bench.model(nn.Linear(2, 2)).module)
    for collectives in (1, 1, 0, *[1] * check.MOST_APART):
        bench.step(optimizer, collectives)
    ((first, second, third, alone, *later),) = bench.rows()
    assert not any(row.apart or row.alone for row in (first, second, third))
    assert (alone.moment, alone.step, alone.apart, alone.alone) == ((7, 1), 3, True, True)
    assert len(later) == check.MOST_APART - 1
    assert all(row.apart and not row.alone for row in later)


def test_what_is_withheld_is_of_before(bench: Bench) -> None:
    """Of two optimisers of one model one makes a step that the other ranks do not make."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bench.model(net)
    one, other = sgd(net[0]), sgd(net[1])
    bench.step(one, collectives=1)
    bench.step(other, collectives=0)
    bench.step(one, collectives=0)
    bench.step(other, collectives=1)
    assert bench.moments() == [[(6, 0)], [(6, 0)]]


def test_steps_within_no_sync(bench: Bench, logged: list[str]) -> None:
    """Whatever collectives are between them."""
    model = bench.model(nn.Linear(2, 2))
    optimizer = sgd(model.module)
    model.require_forward_param_sync = False
    for _ in range(3):
        bench.step(optimizer, collectives=1)
    assert bench.moments() == [[(6, 0)]]
    assert len(logged) == 1


def test_a_window_that_ends_within_no_sync(bench: Bench, logged: list[str]) -> None:
    """Its gradients were brought together before its last forward, so each step is meant to be one
    of replicas. A window of which no forward did that is the ranks' own."""
    model = bench.model(nn.Linear(2, 2))
    optimizer = sgd(model.module)
    model.require_forward_param_sync = False
    for _ in range(3):
        bench.check.forward(model.logger)
        bench.step(optimizer, collectives=1)
    assert bench.moments() == [[(6, 0), (6, 1), (7, 0), (8, 0)]]
    assert not logged
    bench.step(optimizer, collectives=1)
    assert len(logged) == 1


@pytest.mark.parametrize("between", [0, 1])
def test_tuned_by_another_optimizer(bench: Bench, logged: list[str], between: int) -> None:
    """After a barrier, or without one."""
    module = bench.model(nn.Linear(2, 2)).module
    first, own = sgd(module), sgd(module)
    for _ in range(2):
        bench.step(first, collectives=1)
    bench.step(own, collectives=between)
    bench.step(own, collectives=0)
    assert bench.moments() == [[(6, 0), (6, 1), (7, 0)]]
    assert len(logged) == 1


def test_optimizers_of_parts(bench: Bench, logged: list[str]) -> None:
    """Both step after the same backward."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bench.model(net)
    one, other = sgd(net[0]), sgd(net[1])
    for _ in range(2):
        bench.step(one, collectives=1)
        bench.step(other, collectives=0)
    assert bench.moments() == [[(6, 0), (6, 1), (7, 0)]] * 2
    assert not logged


def test_a_part_of_a_model_that_no_optimizer_has(bench: Bench, logged: list[str]) -> None:
    """All of it is put on record before the next step, as of the step before: ranks that train it
    whole have done so then."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bench.model(net)
    optimizer = sgd(net[0])
    for _ in range(4):
        bench.step(optimizer, collectives=1)
    own, whole = bench.moments()
    assert own == [(6, 0), (6, 1), (7, 0), (8, 0), (9, 0)]
    assert whole == [(6, 1), (7, 0), (8, 0)]
    assert [row.step for row in bench.rows()[1]] == [1, 2, 3]
    assert not logged
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert readers[1].columns == [Column(PARAMETER, name) for name in names]
    everything = sgd(bench.model(net).module)
    bench.step(everything, collectives=1)
    keys = [ReplicaReader(path, lambda _: None, 0).key for path in bench.files()]
    assert keys[1].partition(".")[2] in [key.partition(".")[2] for key in keys[2:]]


def test_a_part_of_a_model_that_is_trained_on_its_own(bench: Bench, logged: list[str]) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bench.model(net)
    optimizer = sgd(net[0])
    bench.step(optimizer, collectives=1)
    for _ in range(3):
        bench.step(optimizer, collectives=0)
    assert bench.moments() == [[(6, 0)], []]
    assert len(logged) == 1


def test_a_parameter_that_was_frozen_later(bench: Bench) -> None:
    """As the model was wrapped, DDP was to bring its gradients together."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bench.model(net)
    net[1].requires_grad_(False)
    optimizer = sgd(net)
    for _ in range(3):
        bench.step(optimizer, collectives=1)
    assert [len(moments) for moments in bench.moments()] == [4, 2]


def test_ddp_that_was_never_used(bench: Bench) -> None:
    """That is the bug, and no choice: all steps are compared."""
    optimizer = sgd(bench.model(nn.Linear(2, 2)).module)
    for _ in range(3):
        bench.step(optimizer, collectives=0)
    assert bench.moments() == [[(5, 0), (5, 1), (5, 2), (5, 3)]]


def test_new_optimizers_share_the_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST_FILES", 2)
    module = bench.model(nn.Linear(2, 2)).module
    for _ in range(check.MOST_FILES + 1):
        optimizer = sgd(module)
        bench.step(optimizer, collectives=1)
    bench.step(optimizer, collectives=1)
    (moments,) = bench.moments()
    assert moments[-1] == (5 + check.MOST_FILES + 2, 0)
    del optimizer
    gc.collect()
    assert not bench.check._steps


def test_too_many_models(bench: Bench, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST_FILES", 2)
    for _ in range(4):
        bench.step(sgd(bench.model(nn.Linear(2, 2)).module), collectives=1)
    assert len(bench.moments()) == 2
    assert logged == ["the check of replicas leaves out further models"]


def test_an_optimizer_that_is_not_hashable(bench: Bench) -> None:
    class Comparable(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            return self is other

    optimizer = Comparable(bench.model(nn.Linear(2, 2)).module.parameters(), lr=0.1)
    for _ in range(2):
        bench.step(optimizer, collectives=1)
    assert bench.moments() == [[(6, 0), (6, 1), (7, 0)]]


def trained(module: nn.Module) -> None:
    module.zero_grad()
    module(torch.ones(1, 2)).sum().backward()


def test_reduced_gradients_tell_replicas(bench: Bench, logged: list[str]) -> None:
    module = nn.Linear(2, 2)
    optimizer = sgd(module)
    for _ in range(2):
        trained(module)
        for parameter in module.parameters():
            assert parameter.grad is not None
            bench.all_reduce(parameter.grad.data)
        bench.step(optimizer, collectives=0)
    assert bench.moments() == [[(7, 0), (7, 1), (9, 0)]]
    assert not logged


@pytest.mark.parametrize("op", ["sum", "min"])
def test_other_reductions_tell_nothing(bench: Bench, op: str) -> None:
    """A loss, the parameters, a part of a gradient; and gradients that are not added up."""
    module = nn.Linear(2, 2)
    optimizer = sgd(module)
    for _ in range(3):
        trained(module)
        gradient = module.weight.grad
        assert gradient is not None
        bench.all_reduce(gradient.sum(), op)
        bench.all_reduce(module.weight.data, op)
        bench.all_reduce(gradient[0] if op == "sum" else gradient, op)
        bench.step(optimizer, collectives=1)
    assert bench.moments() == []


def test_only_what_is_reduced_is_compared(bench: Bench) -> None:
    """Each rank has a head of its own."""
    body, head = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = sgd(body, head)
    for _ in range(2):
        trained(nn.Sequential(body, head))
        for parameter in body.parameters():
            assert parameter.grad is not None
            bench.all_reduce(parameter.grad)
        bench.step(optimizer, collectives=0)
    (path,) = bench.directory.glob("*.replicas")
    columns = ReplicaReader(path, lambda _: None, 0).columns
    assert sum(column.quantity == PARAMETER for column in columns) == 2


def test_a_step_without_reduction_ends_it(bench: Bench, logged: list[str]) -> None:
    """The gradients are in the memory of before, and other collectives go on."""
    module = nn.Linear(2, 2)
    optimizer = sgd(module)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        module(torch.ones(1, 2)).sum().backward()
        for parameter in module.parameters() if step < 2 else ():
            assert parameter.grad is not None
            bench.all_reduce(parameter.grad)
        bench.step(optimizer, collectives=1)
    assert bench.moments() == [[(8, 0), (8, 1), (11, 0)]]
    assert logged == ["the check of replicas is off: steps without synchronisation"]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_flat_copy_tells_replicas(
    bench: Bench, logged: list[str], dtype: torch.dtype, backwards: bool
) -> None:
    """Divided after the call, and clipped."""
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    optimizer = sgd(module)
    for _ in range(3):
        module.zero_grad()
        module(torch.randn(3, 6)).square().sum().backward()
        gradients = [one.grad for one in module.parameters() if one.grad is not None]
        in_order = gradients[::-1] if backwards else gradients
        flat = torch.cat([one.reshape(-1) for one in in_order]).to(dtype)
        bench.all_reduce(flat)
        flat /= 3
        for one, reduced in zip(
            in_order, flat.split([one.numel() for one in in_order]), strict=True
        ):
            one.copy_(reduced.view_as(one))
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        bench.step(optimizer, collectives=0)
    assert bench.moments() == [[(6, 0), (6, 1), (7, 0), (8, 0)]]
    assert not logged


def test_what_another_tensor_came_to_tells_nothing(bench: Bench) -> None:
    """The parameters are averaged, the mean gradient is logged, and ones are like ones."""
    module = nn.Linear(6, 5, bias=False)
    optimizer = sgd(module)
    for step in range(3):
        module.zero_grad()
        outputs = module(torch.randn(3, 6))
        (outputs.square() if step else outputs).sum().backward()
        assert module.weight.grad is not None
        bench.all_reduce(module.weight.detach().clone())
        logged = module.weight.grad.clone()
        logged += torch.randn_like(logged)  # what the other ranks have added to it
        bench.all_reduce(logged)
        bench.step(optimizer, collectives=0)
    bench.all_reduce(torch.ones(30))
    module.weight.grad = torch.ones(5, 6)
    bench.step(optimizer, collectives=0)
    assert bench.moments() == []


def test_a_root_that_hands_gradients_to_all(bench: Bench) -> None:
    module = nn.Linear(2, 2)
    optimizer = sgd(module)
    for _ in range(2):
        trained(module)
        for parameter in module.parameters():
            assert parameter.grad is not None
            bench.broadcast(parameter.grad)
        bench.step(optimizer, collectives=0)
    assert bench.moments() == [[(7, 0), (7, 1), (9, 0)]]


def test_a_gradient_that_equals_weights_which_a_root_has_given_to_all(bench: Bench) -> None:
    """A network trained alone, judged by one that all have: the gradient of its bias is the other's
    weights, which were broadcast before."""
    own, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    bench.broadcast(judge.weight.data)
    optimizer = sgd(own)
    for _ in range(2):
        own.zero_grad()
        judge(own(torch.randn(2, 4))).mean().backward()
        bench.step(optimizer, collectives=0)
    assert bench.moments() == []


def test_gradients_in_one_tensor_that_a_root_has_summed_up(bench: Bench) -> None:
    module = nn.Linear(4, 8)
    optimizer = sgd(module)
    for _ in range(2):
        module.zero_grad()
        module(torch.randn(2, 4)).square().sum().backward()
        gradients = [one.grad for one in module.parameters() if one.grad is not None]
        flat = torch.cat([one.flatten() for one in gradients])
        bench.slot.issued += 1
        bench._calls("reduce", Signature("reduce", root=0, reduce_op="sum"), flat)
        bench.broadcast(flat)
        for one, part in zip(gradients, flat.split([32, 8]), strict=True):
            one.copy_(part.view_as(one))
        bench.step(optimizer, collectives=0)
    (moments,) = bench.moments()
    assert len(moments) == 3


class Through(torch.autograd.Function):
    """Whose backward sums the gradient of the activations over the group."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, bench: Bench) -> torch.Tensor:
        context.bench = bench
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.bench.all_reduce(gradient)
        return gradient, None


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shard, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8)

    def backward(self, bench: Bench | None) -> None:
        """With parts of one model on the ranks, or (`bench` is None) a whole one on each."""
        self.zero_grad()
        normed = self.norm(torch.randn(2, 8))
        passed = Through.apply(normed, bench) if bench else normed
        self.last(self.shard(passed)).pow(3).sum().backward()


def seeming(bench: Bench) -> list[tuple[Sequence[str], list[str], list[int]]]:
    """Of each file of what only seems to be replicas: by what, which, and the steps on record."""
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    return [
        (one.like, [column.name for column in one.columns], [row.step for row in one.digests()])
        for one in readers
        if one.like
    ]


def sum_of(bench: Bench, *modules: nn.Module) -> None:
    for one in (one for module in modules for one in module.parameters()):
        assert one.grad is not None
        bench.all_reduce(one.grad)


@pytest.mark.parametrize("parts", [True, False])
def test_a_forgotten_gradient(bench: Bench, parts: bool) -> None:
    """Where ranks have models of their own, it is a part of that."""
    model = Norms()
    optimizer = sgd(model)
    for one in model.parameters():
        bench.broadcast(one.data)
    for _ in range(check.MOST_APART + 3):
        model.backward(bench if parts else None)
        sum_of(bench, model.norm)
        bench.step(optimizer, collectives=1)
    names = ["last.weight", "last.bias"]
    like, steps = ("norm.weight", "norm.bias"), list(range(check.MOST_APART))
    assert seeming(bench) == ([(like, names, steps)] if parts else [])


def test_calls_without_tensors_pass(bench: Bench) -> None:
    known: Any = SimpleNamespace(text=Signature("barrier").to_json())
    assert bench.look("barrier", (object(),), known, 0) is None
    assert not bench.gradients.of(bench.group).carried


@pytest.mark.parametrize("shares", [True, False])
def test_a_share_of_what_is_summed_up(bench: Bench, shares: bool) -> None:
    """By the next step all of the model is equal again, if no other optimiser has the rest."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 2, bias=False))
    optimizers = [sgd(model[0])] if shares else [sgd(model[0]), sgd(model[1])]
    for _ in range(4):
        model(torch.ones(1, 8)).sum().backward()
        sum_of(bench, model)
        for optimizer in optimizers:
            bench.step(optimizer, collectives=0)
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    steps = {
        tuple(one.name for one in reader.columns if one.quantity == PARAMETER): [
            row.step for row in reader.digests()
        ]
        for reader in readers
        if not reader.use
    }
    assert steps[("0.weight",)] == [0, 1, 2, 3, 4]
    assert steps.get(("0.weight", "1.weight")) == ([1, 2, 3] if shares else None)


def test_hooks_that_sum_gradients_pass_no_activations(bench: Bench) -> None:
    model = Norms()
    optimizer = sgd(model)
    for one in [*model.norm.parameters(), *model.shard.parameters()]:
        one.register_post_accumulate_grad_hook(lambda it: bench.all_reduce(it.grad))  # type: ignore[arg-type]
    for _ in range(3):
        model.backward(None)
        bench.step(optimizer, collectives=1)
    assert len(bench.files()) == 1
    assert not seeming(bench)


@pytest.mark.parametrize("what", ["gradients", "weights", "none"])
def test_what_is_no_longer_forgotten(bench: Bench, what: str) -> None:
    """From the second step on its own gradients are summed, or its weights, or no gradient is: what
    followed the first step is not put on record."""
    model = Norms()
    optimizer = sgd(model)
    for step in range(4):
        model.backward(bench)
        if not step or what != "none":
            sum_of(bench, model.norm)
        if step and what == "gradients":
            sum_of(bench, model.last)
        bench.step(optimizer, collectives=1)
        if what == "weights":
            for one in model.last.parameters():
                bench.all_reduce(one.data)
    ((_, _, steps),) = seeming(bench)
    rows = next(rows for rows in bench.rows() if [row.step for row in rows] == steps)
    assert [row.step for row in rows if not row.apart] == [0]


def test_sums_that_were_no_gradients_for_long_are_not_kept(bench: Bench) -> None:
    """Those of another size are, and tell that a gradient came of them."""
    gradient = torch.zeros(32)
    for _ in range(MOST_UNMATCHED + 3):
        since = bench.gradients.count
        bench.all_reduce(torch.randn(64))
        assert bench.gradients.held(bench.group, [gradient], since) == [False]
    assert len(bench.gradients.of(bench.group).sums) == MOST_UNMATCHED
    bench.all_reduce(torch.arange(32.0))
    gradient.copy_(torch.arange(32.0) / 2)
    assert bench.gradients.held(bench.group, [gradient]) == [True]
    bench.all_reduce(torch.randn(64))
    assert len(bench.gradients.of(bench.group).sums) == MOST_UNMATCHED + 2


def tables(bench: Bench) -> list[tuple[str, dict[str, frozenset[str]], list[Digest]]]:
    """Of each table: the use of its group, the traits by name, and what was put on record."""
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    return [
        (
            one.use,
            dict(zip((c.name for c in one.columns), one.traits, strict=True)),
            list(one.digests()),
        )
        for one in readers
        if one.use not in ("", RANDOM_STATE)
    ]


class Frozen(Norms):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8, bias=False).requires_grad_(False)


def test_all_parameters_where_a_group_passes_activations(bench: Bench) -> None:
    """As they are before each step: ranks may exchange what they have made before that."""
    model = Frozen()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for _ in range(3):
        model.backward(bench)
        bench.step(optimizer, collectives=1)
        optimizer.step()
    ((use, traits, rows),) = tables(bench)
    assert (use, [row.step for row in rows]) == (PASSING, [0, 1, 2])
    assert len({row.total for row in rows}) == 3
    assert traits["norm.weight"] == {CONSTANT, "float32"}
    assert traits["shard.weight"] == {MATRIX, "float32"}
    assert traits["base.weight"] == {MATRIX, FROZEN, "float32"}
    every = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    (random,) = [one for one in every if one.use == RANDOM_STATE]
    assert random.columns == [Column(RANDOM_STATE, "cpu"), Column(RANDOM_STATE, "cuda")]
    assert [row.moment for row in random.digests()] == [(1, 0), (2, 0), (3, 0)]


def test_what_the_group_sums_is_left_out_of_its_table(bench: Bench) -> None:
    model = Norms()
    optimizer = sgd(model)
    for _ in range(3):
        model.backward(bench)
        sum_of(bench, model)
        bench.step(optimizer, collectives=0)
    ((_, _, rows),) = tables(bench)
    assert len({row.total for row in rows}) == 1


def test_no_table_of_what_is_known(bench: Bench) -> None:
    """Replicas by their gradients, and a model whose ranks only bring a loss together."""
    for sums in (True, False):
        model = Norms()
        optimizer = sgd(model)
        for _ in range(2):
            model.backward(None)
            if sums:
                sum_of(bench, model)
            bench.all_reduce(torch.ones(1))
            bench.step(optimizer, collectives=0)
    assert not tables(bench)


def test_what_is_frozen_in_a_summing_group(bench: Bench) -> None:
    model = Frozen()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for step in range(3):
        model.backward(None)
        for one in model.parameters():
            if one.requires_grad and one.grad is not None:
                bench.all_reduce(one.grad)
        if step == 1:
            model.base.weight.data[0, 0] += 1
        bench.step(optimizer, collectives=0)
    ((use, traits, rows),) = tables(bench)
    assert (use, list(traits)) == (SUMMING, ["base.weight"])
    assert [row.total == rows[0].total for row in rows] == [True, False, False]


def test_the_frozen_parameters_of_a_ddp_model(bench: Bench) -> None:
    model = Frozen()
    made = bench.model(model)
    known = bench.check._models[0]
    known.trained = frozenset(n for n, one in model.named_parameters() if one.requires_grad)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for _ in range(3):
        bench.step(optimizer, collectives=1)
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    assert [(one.axis, len(one.digests())) for one in readers] == [("dp", 4), ("dp", 4)]
    assert [column.name for column in readers[1].columns] == ["base.weight"]
    assert made.module is model


@pytest.mark.parametrize(
    ("averages", "expected"),
    [("parameters", True), ("another tensor", False), ("messages", True), ("nothing", False)],
)
def test_parameters_that_ranks_average_between_steps_alone(
    bench: Bench, averages: str, expected: bool
) -> None:
    model = bench.model(nn.Linear(8, 8))
    optimizer = sgd(model.module)
    model.require_forward_param_sync = False
    for _ in range(3):
        bench.step(optimizer, collectives=1)
        if averages == "parameters":
            bench.all_reduce(model.module.weight.data)
        elif averages == "another tensor":
            bench.all_reduce(torch.randn(64))
        elif averages == "messages":
            bench._calls("send", Signature("send", peer=1), torch.ones(64))
    (rows,) = bench.rows()
    assert [row.busy for row in rows] == [False, False, expected, expected]
    assert [row.no_sync for row in rows] == [False, True, True, True]


def test_the_first_average_after_many_steps_alone(bench: Bench) -> None:
    model = bench.model(nn.Linear(8, 8))
    optimizer = sgd(model.module)
    model.require_forward_param_sync = False
    for _ in range(check.MOST_APART + 4):
        bench.step(optimizer, collectives=1)
    bench.all_reduce(model.module.weight.data)
    for _ in range(4):
        bench.step(optimizer, collectives=1)
    (rows,) = bench.rows()
    assert [row.busy for row in rows[-2:]] == [False, True]
    assert len(rows) == check.MOST_APART + 2


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4)])
def test_running_statistics_when_a_model_is_evaluated(bench: Bench, norm: nn.Module) -> None:
    """At the first forward of each evaluation; whatever is evaluated beside it."""
    model = bench.model(nn.Sequential(nn.Linear(4, 4), norm))
    inner, other = model.module, nn.Linear(4, 4)
    for module, mode in ((inner, False), (other, False), (inner[0], False)):
        module.train(mode)
        bench.check.switched(module, mode)
    for _ in range(2):
        other(torch.ones(2, 4))
        inner(torch.ones(2, 4))
    bench.check.switched(inner, False)
    inner(torch.ones(2, 4))
    bench.check.switched(inner, False)
    bench.check.switched(inner, True)
    inner(torch.ones(2, 4))
    assert not nn.modules.module._global_forward_pre_hooks
    readers = [ReplicaReader(path, lambda _: None, 0) for path in bench.files()]
    expected = ["1.running_mean", "1.running_var"] if isinstance(norm, nn.BatchNorm1d) else []
    assert [column.name for one in readers for column in one.columns] == expected
    moments = [row.moment for one in readers for row in one.digests()]
    assert moments == ([(5, 0), (5, 1)] if expected else [])


def test_what_the_program_says_is_replicated(bench: Bench) -> None:
    """It is compared before and after each step, whoever brings it together."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = sgd(model)
    group: Any = SimpleNamespace(_record=bench.group)
    bench.check.say(model[1], group)
    for _ in range(3):
        bench.step(optimizer, collectives=1)
    (path,) = bench.files()
    reader = ReplicaReader(path, lambda _: None, 0)
    assert [row.step for row in reader.digests()] == [0, 1, 2, 3]
    assert {c.name for c in reader.columns if c.quantity == PARAMETER} == {"weight", "bias"}


def test_what_the_program_says_is_not_replicated(bench: Bench) -> None:
    """Of a model of DDP, and of a table."""
    model = Frozen()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    bench.check.say(model.base, None)
    bench.check.say(model.norm.weight, None)
    model.backward(bench)
    bench.step(optimizer, collectives=1)
    ((_, traits, _),) = tables(bench)
    assert not traits.keys() & {"base.weight", "norm.weight"}
    assert "norm.bias" in traits
    net = nn.Linear(2, 2)
    bench.model(net)
    bench.check.say(net.bias, None)
    bench.step(sgd(net), collectives=1)
    reader = ReplicaReader(bench.files()[-1], lambda _: None, 0)
    assert {c.name for c in reader.columns if c.quantity == PARAMETER} == {"weight"}


def test_the_first_step_and_those_after_a_load_or_a_save_are_compared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none after a load into another module."""
    monkeypatch.setattr(check, "is_due", lambda *_: False)
    model, other = bench.model(nn.Linear(2, 2)), nn.Linear(2, 2)
    optimizer = sgd(model.module)
    events = {4: model.module, 7: optimizer, 10: other}
    heard: list[Any] = []
    with monkeypatch.context() as patching:
        for kind in (nn.Module, torch.optim.Optimizer):
            patching.setattr(kind, "load_state_dict", kind.load_state_dict)
        training.on_loads(lambda parameters: heard.append(list(parameters)))
        for owner in events.values():
            owner.load_state_dict(owner.state_dict())
    loaded = dict(zip(events, heard, strict=True))
    for step in range(1, 15):
        if step in events:
            bench.check.loaded(loaded[step])
        if step == 12:
            bench.check.saved()
        bench.step(optimizer, collectives=1)
    (rows,) = bench.rows()
    assert [row.step for row in rows] == [0, 1, 4, 7, 12]
    assert [row.step for row in rows if row.loaded] == [4, 7]
