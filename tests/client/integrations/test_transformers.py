"""Hugging Face's Trainer, with one line of `attach` where its callback hands out the objects."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import gradwatch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")


class Callback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """What a user writes in three lines."""

    def __init__(self, aggregator: Any) -> None:
        self.aggregator = aggregator
        self.logged: list[tuple[int, float]] = []
        self.watch: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        self.watch = gradwatch.attach(
            kw["model"],
            kw["optimizer"],
            run="test",
            endpoint=self.aggregator.endpoint,
            first_step=state.global_step,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if "grad_norm" in logs:
            self.logged.append((state.global_step - 1, float(logs["grad_norm"])))

    def on_train_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        self.watch.close()


def make_model() -> Any:
    """GPT-2 in small."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Texts(torch.utils.data.Dataset[Any]):
    """13 batches of two."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def train(folder: Path, callback: Any, **settings: Any) -> Any:
    """Train one epoch; return the model."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    model = make_model()
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Texts(),
        callbacks=[callback] if callback is not None else [],
    )
    trainer.train()
    return model


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_each_step_has_the_norm_that_the_trainer_logs(
    aggregator: Any, tmp_path: Path, accumulate: int, clip: float
) -> None:
    """Before clipping, at its own step, also in the shorter window at the epoch's end."""
    callback = Callback(aggregator)
    settings = {"gradient_accumulation_steps": accumulate, "max_grad_norm": clip}
    watched = train(tmp_path, callback, **settings)
    steps = math.ceil(13 / accumulate)
    sent = aggregator.stats(steps)

    assert [stats.step for stats in sent] == [step for step, _ in callback.logged]
    totals = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]
    assert totals == pytest.approx([norm for _, norm in callback.logged], rel=1e-4)
    passes = [stats.scalars.get("collections", 1.0) for stats in sent]
    assert passes == ([1.0] * 13 if accumulate == 1 else [4.0, 4.0, 4.0, 1.0])
    assert callback.watch.stats()["faults"] == 0
    plain = train(tmp_path, None, **settings)
    for mine, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)
