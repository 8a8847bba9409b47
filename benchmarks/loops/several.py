"""Loops with several losses, models or optimizers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from benchmarks.loops.networks import WIDTH, Network, batch, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

TO_SCORE = nn.functional.binary_cross_entropy_with_logits


@loop("two losses, a backward pass each")
def two_losses(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)
    for step in range(trial.steps):
        optimizer.zero_grad()
        losses = []
        for number, share in enumerate((1.0, 0.3)):
            trial.at(step, here=number == 0)
            loss = share * loss_of(model, step, micro=number)
            loss.backward()
            trial.tell_loss(loss)
            losses.append(float(loss))
        trial.truth.step(step, model, optimizer, loss=sum(losses) / 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def _real(step: int) -> Tensor:
    return batch(step)[0]


def _noise(step: int, micro: int = 0) -> Tensor:
    return batch(step, micro=5 + micro)[0]


def adversarial(trial: Trial, *, critic_steps: int = 1) -> Mapping[str, nn.Module]:
    """Train a generator against a discriminator: the generator's pass runs through both."""
    models = {
        "generator": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
        "discriminator": Network(),
    }
    generator, discriminator = models.values()
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    trial.inject(discriminator, "blocks.1.down", "discriminator.")
    trial.attach(models, [of_generator, of_discriminator])
    step = 0
    for _ in range(trial.steps // critic_steps):
        for micro in range(critic_steps):
            if micro:
                step += 1  # the critic is at it again: another step
            trial.at(step)
            of_discriminator.zero_grad()
            real = discriminator(_real(step))
            fake = discriminator(generator(_noise(step)).detach())
            loss = TO_SCORE(real, torch.ones(4, 1)) + TO_SCORE(fake, torch.zeros(4, 1))
            loss.backward()
            trial.tell_loss(loss)
            trial.truth.step(step, models, of_discriminator, loss=loss)
            of_discriminator.step()
        trial.at(step, here=False)
        of_generator.zero_grad()
        loss = TO_SCORE(discriminator(generator(_noise(step, 1))), torch.ones(4, 1))
        loss.backward()
        trial.tell_loss(loss)
        trial.truth.step(step, models, of_generator, loss=loss)
        of_generator.step()
        step += 1
    return models


@loop("GAN")
def gan(trial: Trial) -> Mapping[str, nn.Module]:
    return adversarial(trial)


@loop("GAN, two steps of the critic for each of the generator")
def gan_with_critic(trial: Trial) -> Mapping[str, nn.Module]:
    return adversarial(trial, critic_steps=2)


@loop("dict of models, one optimizer")
def dict_of_models(trial: Trial) -> Mapping[str, nn.Module]:
    models = {"encoder": Network(), "decoder": nn.Linear(1, WIDTH)}
    encoder, decoder = models.values()
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    trial.inject(encoder, "blocks.1.down", "encoder.")
    trial.attach(models, optimizer)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        x, _ = batch(step)
        loss = nn.functional.mse_loss(decoder(encoder(x)), x)
        loss.backward()
        trial.tell_loss(loss)
        trial.truth.step(step, models, optimizer, loss=loss)
        optimizer.step()
    return models


@loop("two optimizers that step together")
def two_optimizers(trial: Trial) -> nn.Module:
    model = Network()
    optimizers = [
        torch.optim.SGD(model.blocks.parameters(), lr=0.05),
        torch.optim.AdamW([*model.stem.parameters(), *model.head.parameters()], lr=0.01),
    ]
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizers)
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.tell_loss(loss)
        for optimizer in optimizers:
            trial.truth.step(step, model, optimizer, loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model
