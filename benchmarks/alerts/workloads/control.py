"""A cart-pole of our own: policy gradient, and TD learning with a target network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training
from benchmarks.alerts.workloads.mlp import perceptron

_CARTS = 16
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
    """Actor and critic on some steps of 16 carts, which go on from step to step."""

    name = "policy_gradient"
    about = "policy gradient with a critic, cart-pole, Adam, clip 0.5"
    clip = 0.5
    default_steps = 1500

    def build(self) -> None:
        self.policy, self.critic = perceptron(4, 24, 2), perceptron(4, 24, 1)
        self.model = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=3e-3, fused=True)]
        self.states = 0.05 * torch.randn(_CARTS, 4)

    @torch.no_grad()
    def batch(self, step: int, rank: int) -> Batch:
        states, actions, ends = [], [], []
        for _ in range(_HORIZON):
            left, right = self.policy(self.states).unbind(1)
            chosen = (torch.rand(_CARTS) < (right - left).sigmoid()).float()
            after, fallen = push(self.states, chosen)
            states.append(self.states)
            actions.append(chosen)
            ends.append(fallen)
            self.states = torch.where(fallen.unsqueeze(1), 0.05 * torch.randn(_CARTS, 4), after)
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
        loss: Tensor = (entropy * gains).mean() + 0.1 * nn.functional.mse_loss(values, returns)
        return loss


class TdLearning(Training):
    """Values of both actions, against those of a network that is copied now and then."""

    name = "td_learning"
    about = "TD learning of action values, cart-pole, target network copied every 150 steps, Adam"

    def build(self) -> None:
        self.model = perceptron(4, 32, 32, 2)
        self.target = copy.deepcopy(self.model)
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        states = torch.randn(32, 4) * torch.tensor([1.0, 1.0, 0.1, 1.0])
        actions = torch.randint(2, (32,)).float()
        after, fallen = push(states, actions)
        with torch.no_grad():
            best = self.target(after).max(1).values
        return states, actions, torch.where(fallen, 0.0, 1.0 + _DISCOUNT * best)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        states, actions, targets = batch
        values = self.model(states).gather(1, actions.long().unsqueeze(1)).squeeze(1)
        return nn.functional.huber_loss(values, targets)

    def after_step(self, step: int) -> None:
        if step % 150 == 149:
            self.target.load_state_dict(self.model.state_dict())
