"""Programs whose ranks begin with equal parameters and part, each for a good reason: `NAME`.

Each of them has a norm like another, and most have ranks that work on one model. `forgotten` and
what is named after it are mistakes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 8
STEPS = 6


def summed(tensors: Iterable[Tensor | None], group: Any = None) -> None:
    for one in tensors:
        if one is not None:
            dist.all_reduce(one, group=group)


def gradients(*modules: nn.Module) -> list[Tensor | None]:
    return [one.grad for module in modules for one in module.parameters()]


class Gathered(torch.autograd.Function):
    """The rows of all ranks."""

    @staticmethod
    def forward(context: Any, part: Tensor, group: Any) -> Tensor:
        context.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        size, rank = dist.get_world_size(context.group), dist.get_rank(context.group)
        return gradient.chunk(size)[rank], None


class Exchanged(torch.autograd.Function):
    """Each rank's tokens go to the experts of all."""

    @staticmethod
    def forward(_context: Any, tokens: Tensor) -> Tensor:
        found = torch.empty_like(tokens)
        dist.all_to_all_single(found, tokens.contiguous())
        return found

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return Exchanged.forward(None, gradient)


def mine(whole: Tensor, group: Any = None) -> Tensor:
    return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]


class Block(nn.Module):
    """What all hold, and a shard or an expert."""

    def __init__(self, own: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.own = own or nn.Linear(WIDTH, WIDTH)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, group: Any = None) -> Tensor:
        return self.last(mine(self.own(Gathered.apply(self.norm(x), group)), group))  # type: ignore[no-any-return]


def expert() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))


DATA = torch.Generator()


def rows() -> Tensor:
    return torch.randn(4, WIDTH, generator=DATA)


def trained(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    before: Callable[[int], None],
    after: Callable[[int], None] = lambda _: None,
) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(rows()).pow(3).mean().backward()
        before(step)
        optimizer.step()
        after(step)


def sgd(*modules: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for each in modules for one in each.parameters()], lr=lr)


def averaged(module: nn.Module) -> None:
    with torch.no_grad():
        for one in module.parameters():
            dist.all_reduce(one)
            one /= dist.get_world_size()


# -- mistakes ----------------------------------------------------------------------------------


def forgotten() -> None:
    model = Block()
    trained(model, sgd(model), lambda _: summed(gradients(model.norm)))


def forgotten_in_groups_of_two() -> None:
    """Tensor parallel by two, data parallel by two; the last norm is summed by the latter alone."""
    ranks = range(dist.get_world_size())
    tensor = [dist.new_group([one, one + 1]) for one in ranks[::2]][dist.get_rank() // 2]
    data = [dist.new_group([one, one + 2]) for one in ranks[:2]][dist.get_rank() % 2]
    model = Block()

    def sums(_step: int) -> None:
        summed(gradients(model), data)
        summed(gradients(model.norm), tensor)

    trained(lambda x: model(x, tensor), sgd(model), sums)


def forgotten_in_one_tensor() -> None:
    """The gradients are summed in a copy, and the first steps do nothing."""
    model = Block()
    optimizer = sgd(model, lr=0.0)

    def sums(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * (step // 2)
        found = [one for one in gradients(model.norm) if one is not None]
        flat = torch.cat([one.reshape(-1) for one in found])
        dist.all_reduce(flat)
        for one, part in zip(found, flat.split([one.numel() for one in found]), strict=True):
            one.copy_(part.view_as(one))

    trained(model, optimizer, sums)


# -- by design ---------------------------------------------------------------------------------


def all_norms() -> None:
    model = Block()
    trained(model, sgd(model), lambda _: summed(gradients(model.norm, model.last)))


def local_sgd() -> None:
    model = Block()
    trained(model, sgd(model), lambda _: None, lambda step: averaged(model) if step % 3 else None)


def outer_steps() -> None:
    """DiLoCo: what two steps of each rank's own come to is the gradient of an outer optimiser."""
    model, start = plain(), plain()
    start.load_state_dict(model.state_dict())
    outer = torch.optim.SGD(start.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def after(step: int) -> None:
        if step % 2:
            for known, one in zip(start.parameters(), model.parameters(), strict=True):
                known.grad = known.detach() - one.detach()
            summed(gradients(start))
            outer.step()
            model.load_state_dict(start.state_dict())

    trained(model, torch.optim.AdamW(model.parameters(), lr=0.01), lambda _: None, after)


def federated_but_norms() -> None:
    """FedBN: each client keeps its norms; the rest of the gradients is averaged."""
    model = plain()
    trained(model, sgd(model), lambda _: summed(gradients(model[1])))


def averaged_now_and_then() -> None:
    """FedAvg: all but the last norm is averaged every third step."""
    model = Block()

    def after(step: int) -> None:
        if step % 3 == 2:
            averaged(model.norm)
            averaged(model.own)

    trained(model, sgd(model), lambda _: None, after)


def own_average() -> None:
    """The first rank alone keeps a moving average of the model."""
    model = Block()
    kept = copy.deepcopy(model)

    def after(_step: int) -> None:
        if not dist.get_rank():
            for old, new in zip(kept.parameters(), model.parameters(), strict=True):
                old.data.lerp_(new.data, 0.1)

    trained(model, sgd(model), lambda _: summed(gradients(model.norm, model.last)), after)


def ensemble() -> None:
    """Models of their own, whose predictions are gathered at each step."""
    model = plain()

    def forward(x: Tensor) -> Tensor:
        found: Tensor = model(x)
        parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, found.detach())
        return found + torch.stack(parts).mean(0)

    trained(forward, sgd(model), lambda _: None)


def heads_of_their_own() -> None:
    """Beside a common trunk in one flat module."""
    model = nn.Module()
    model.norm, model.body = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
    model.head_norm, model.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
    parts = [model.norm, model.body, model.head_norm, model.head]
    for one in [*model.norm.parameters(), *model.body.parameters()]:
        one.register_post_accumulate_grad_hook(lambda it: summed([it.grad]))
    trained(nn.Sequential(*parts), sgd(model), lambda _: None)


def several_discriminators() -> None:
    """A generator that all train, and a discriminator of each rank's own."""
    generator, judge = plain(), plain()
    both = nn.ModuleDict({"generator": generator, "judge": judge})
    model = nn.Sequential(generator, judge)
    trained(model, sgd(both), lambda _: summed(gradients(generator)))


def experts() -> None:
    """Seeded alike; tokens are exchanged."""
    model = Block(expert())

    def forward(x: Tensor) -> Tensor:
        found = Exchanged.apply(model.own(Exchanged.apply(model.norm(x))))
        return model.last(found)  # type: ignore[no-any-return]

    trained(forward, sgd(model), lambda _: summed(gradients(model.norm, model.last)))


def experts_of_gathered_tokens() -> None:
    model = Block(expert())
    trained(model, sgd(model), lambda _: summed(gradients(model.norm, model.last)))


def experts_among_others() -> None:
    """A flat module; what is an expert's is summed by those that hold the same expert."""
    ranks = range(dist.get_world_size())
    same = [dist.new_group([one, one + 2]) for one in ranks[:2]][dist.get_rank() % 2]
    model = Block()

    def sums(_step: int) -> None:
        summed(gradients(model.norm))
        summed(gradients(model.own, model.last), same)

    trained(model, sgd(model), sums)


def stages() -> None:
    """A pipeline of equal stages; the embedding of the first and the head of the last are one."""
    rank = dist.get_rank()
    model = nn.ModuleDict({"tied": nn.Linear(WIDTH, WIDTH), "body": plain()})

    def forward(x: Tensor) -> Tensor:
        if rank % 2:
            got = torch.empty(4, WIDTH)
            dist.recv(got, rank - 1)
            return model["tied"](model["body"](got))  # type: ignore[no-any-return]
        found: Tensor = model["body"](model["tied"](x))
        dist.send(found.detach(), rank + 1)
        return found

    trained(forward, sgd(model), lambda _: summed(gradients(model["tied"])))


def parameter_server() -> None:
    """The first rank alone steps, and hands the weights to all; workers add noise of their own."""
    model = plain()

    def sums(_step: int) -> None:
        for one in gradients(model):
            assert one is not None
            dist.reduce(one, 0)

    def after(_step: int) -> None:
        for one in model.parameters():
            dist.broadcast(one.data, 0)

    trained(model, sgd(model), sums, after)


def shared_memory() -> None:
    """Hogwild: ranks step as they like, now and then counting how far they are."""
    model = plain()
    model.share_memory()
    trained(model, sgd(model), lambda _: None, lambda _: summed([torch.ones(1)]))


def weights_in_place_of_gradients() -> None:
    """The weights of the last norm are averaged after the step, not its gradients before."""
    model = Block()
    sums = lambda _: summed(gradients(model.norm))  # noqa: E731
    trained(model, sgd(model), sums, lambda _: averaged(model.last))


def seeded_by_rank() -> None:
    """The last norm is another on each rank from the start."""
    model = Block()
    nn.init.normal_(model.last.weight)
    torch.manual_seed(dist.get_rank())
    nn.init.normal_(model.last.weight)
    trained(model, sgd(model), lambda _: summed(gradients(model.norm)))


def pushed_now_and_then() -> None:
    """All gradients are summed at every other step, those of the first norm at each."""
    model = Block()

    def sums(step: int) -> None:
        summed(gradients(model) if step % 2 else gradients(model.norm))

    trained(model, sgd(model), sums)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    DATA.manual_seed(7 + dist.get_rank())
    globals()[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
