"""Ray Train: each worker attaches; `python train_ray.py` trains with 2 workers on this machine.

Ray starts the workers, so what they need from the environment is given to them.
"""

import os

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

import gradwatch

STEPS = 20
BAD_STEP = 10
VARIABLES = ("GRADWATCH_ENDPOINT", "GRADWATCH_KEYS", "GRADWATCH_SPILL", "GRADWATCH_OVERHEAD")


def train(config: dict[str, str]) -> None:
    """Train on one worker; the data of rank 1 is bad at one step."""
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with gradwatch.attach(model, optimizer, run=config["run"], every=1) as watch:
        torch.manual_seed(dist.get_rank())  # each rank has batches of its own
        for step in range(STEPS):
            x = torch.randn(32, 8)
            if step == BAD_STEP and dist.get_rank() == 1:
                x[0] = torch.inf
            loss = model(x).pow(2).mean()
            loss.backward()
            watch.annotate(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    ray.init(runtime_env={"env_vars": given}, include_dashboard=False)
    TorchTrainer(
        train,
        train_loop_config={"run": "ray-example"},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(name="ray-example"),
        torch_config=TorchConfig(backend="nccl" if torch.cuda.is_available() else "gloo"),
    ).fit()
