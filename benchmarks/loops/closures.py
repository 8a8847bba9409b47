"""Loops that hand the backward pass to the optimizer as a closure."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.loops.networks import loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


@loop("`step(closure)`")
def closure(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)

    for step in range(trial.steps):

        def evaluate(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            trial.end_pass(step, model, optimizer, loss)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        trial.at(step)
        optimizer.step(evaluate)
    return model


@loop("`step(closure)`, accumulation before it")
def closure_with_accumulation(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.AdamW, lr=0.01)
    for step in range(trial.steps):
        losses: list[float] = []

        def evaluate(step: int = step, micro: int = 2, losses: list[float] = losses) -> Tensor:
            loss = loss_of(model, step, micro=micro)
            (loss / 3).backward()
            trial.tell_loss(loss)
            losses.append(float(loss))
            if micro == 2:
                mean = sum(losses) / len(losses)
                trial.truth.step(step, model, optimizer, loss=mean)
            return loss

        for micro in range(2):
            trial.at(step, here=False)
            evaluate(micro=micro)
        trial.at(step)
        optimizer.step(evaluate)
        optimizer.zero_grad()
    return model


@loop("LBFGS")
def lbfgs(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.LBFGS, lr=0.05, max_iter=4)
    for step in range(trial.steps):
        evaluations = [0]

        def evaluate(step: int = step, evaluations: list[int] = evaluations) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            trial.tell_loss(loss)
            if not evaluations[0]:  # the later ones are at other points than the step's
                trial.truth.step(step, model, optimizer, loss=loss)
            evaluations[0] += 1
            return loss

        trial.at(step)
        optimizer.step(evaluate)
    return model
