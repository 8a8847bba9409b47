"""Families of reinforcement learning on a cart-pole: policy gradient, and TD learning."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.alerts.families.perceptrons import perceptron
from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

_HORIZON = 8
_DISCOUNT = 0.97


def push(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next states of carts that are pushed left (0) or right (1), and who has fallen.

    The equations of Barto, Sutton and Anderson (1983), in steps of 0.02 s.

    Args:
        states: (carts, 4) position, velocity, angle, angular velocity.
        actions: (carts,).
    """
    x, speed, angle, spin = states.unbind(1)
    cos, sin = angle.cos(), angle.sin()
    force = 20.0 * actions - 10.0
    common = (force + 0.05 * spin.square() * sin) / 1.1
    turning = (9.8 * sin - cos * common) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
    pulling = common - 0.05 * turning * cos / 1.1
    following = (
        x + 0.02 * speed,
        speed + 0.02 * pulling,
        angle + 0.02 * spin,
        spin + 0.02 * turning,
    )
    after = torch.stack(following, 1)
    return after, (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21)


class PolicyGradient(Training):
    """Actor and critic on some steps of carts, which go on from step to step."""

    name = "policy_gradient"
    is_left_out = True
    loss_may_grow = True
    options = Options(
        batches=(8, 16, 32),
        depths=(1, 2),
        optimizers=("adam", "adam", "rmsprop"),
        precisions=("float32",),
        clips=(0.5, 1.0, None),
        worlds=(1,),
        accumulates=(1,),
        habits=("", "resumed"),
        speed=0.7,
    )

    def build(self) -> None:
        hidden = [self.recipe.width] * self.recipe.depth
        self.policy, self.critic = perceptron(4, *hidden, 2), perceptron(4, *hidden, 1)
        self.model = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self.states = 0.05 * torch.randn(self.recipe.batch, 4)

    @torch.no_grad()
    def batch(self, step: int, rank: int) -> Batch:
        states, actions, ends = [], [], []
        carts = len(self.states)
        for _ in range(_HORIZON):
            left, right = self.policy(self.states).unbind(1)
            chosen = (torch.rand(carts) < (right - left).sigmoid()).float()
            after, fallen = push(self.states, chosen)
            states.append(self.states)
            actions.append(chosen)
            ends.append(fallen)
            self.states = torch.where(fallen.unsqueeze(1), 0.05 * torch.randn(carts, 4), after)
        returns = []
        value = self.critic(self.states).squeeze(1)
        for fallen in reversed(ends):
            value = torch.where(fallen, 0.0, 1.0 + _DISCOUNT * value)
            returns.append(value)
        return torch.cat(states), torch.cat(actions), torch.cat(returns[::-1])

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        states, actions, returns = batch
        values = self.critic(states).squeeze(1)
        logits = self.policy(states)
        gains = (returns - values).detach()
        entropy = nn.functional.cross_entropy(logits, actions.long(), reduction="none")
        wandering = torch.distributions.Categorical(logits=logits, validate_args=False).entropy()
        errors = 0.5 * (returns - values).square().mean()
        loss: Tensor = (gains * entropy).mean() + errors - 0.01 * wandering.mean()
        return loss


class TdLearning(Training):
    """Q-learning on random states, with a target network that is copied now and then."""

    name = "td_learning"
    loss_may_grow = True
    options = Options(
        optimizers=("adam", "adam", "rmsprop"),
        batches=(16, 32, 64),
        precisions=("float32",),
        rate=0.7,
    )

    def build(self) -> None:
        self.model = perceptron(4, *[self.recipe.width] * self.recipe.depth, 2)
        self.target = copy.deepcopy(self.model).requires_grad_(False)

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        states = torch.randn(count, 4) * torch.tensor([1.0, 1.0, 0.1, 1.0])
        actions = torch.randint(2, (count,)).float()
        after, fallen = push(states, actions)
        with torch.no_grad():
            best = self.target(after).max(1).values
        return states, actions, torch.where(fallen, 0.0, 1.0 + _DISCOUNT * best)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        states, actions, targets = batch
        values = self.model(states).gather(1, actions.long().unsqueeze(1)).squeeze(1)
        loss: Tensor = nn.functional.huber_loss(values, targets)
        return loss

    def after_step(self, step: int) -> None:
        super().after_step(step)
        if step % 150 == 149:
            self.target.load_state_dict(self.model.state_dict())
