"""Four ranks train a linear model; one of them leaves the common path at the 18th step."""

import torch
import torch.distributed as dist

STEPS = 30
WEIGHTS = 1024


def loss_and_gradient(weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
    inputs = torch.randn(32, WEIGHTS)
    if dist.get_rank() == 2 and step == 17:
        inputs *= 100.0  # one bad sample in the shard of rank 2
    error = inputs @ weights - inputs.sum(dim=1)
    return error.square().mean().item(), inputs.T @ error / len(inputs)


def train_step(weights: torch.Tensor, step: int, best_loss: float) -> float:
    loss, gradient = loss_and_gradient(weights, step)
    if loss > 10.0 * best_loss:
        # The bug: the loss is this rank's own, so the other ranks do not come here.
        dist.broadcast(weights, src=0)
        return best_loss
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient / dist.get_world_size()
    return min(loss, best_loss)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    weights = torch.zeros(WEIGHTS)
    best_loss = float("inf")
    for step in range(STEPS):
        best_loss = train_step(weights, step, best_loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
