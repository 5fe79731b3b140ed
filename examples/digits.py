"""Train a small classifier of handwritten digits, and resume it after an interruption.

    python examples/digits.py --out runs/digits --set training.epochs=3
    python examples/digits.py --evaluate runs/digits

You can stop or kill the first command at any time; run it again to resume the training.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

import torch
from torch import Tensor, nn

from drpm.data import Split, load
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, save_model
from drpm.training.config import TrainingConfig, check_setting, settings
from drpm.training.devices import Devices, connect, seeded
from drpm.training.errors import ConfigError, Interrupted, RunError
from drpm.training.loop import TrainingProgress, train_stage
from drpm.training.program import Batch
from drpm.training.runs import RunFolder, open_run


@settings
class Config:
    """The hyperparameters of a run.

    Args:
        hidden: Width of the hidden layer.
        dropout: Dropout probability of the hidden layer.
        noise: Initial standard deviation of the noise added to the images; it decays to zero.
        training: Training settings.
    """

    hidden: int = 64
    dropout: float = 0.1
    noise: float = 0.2
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=10, batch_size=64, learning_rate=3e-3)
    )

    def __post_init__(self) -> None:
        check_setting(self, "hidden", "at least 1", lambda value: value >= 1)
        check_setting(self, "dropout", "in [0, 1)", lambda value: 0 <= value < 1)
        check_setting(self, "noise", "at least 0", lambda value: value >= 0)


def make_model(hidden: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, 10),
    )


def objective(
    model: nn.Module,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    images = batch["images"]
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    scores = model(images + schedule["noise"] * noise)
    return {"loss": nn.functional.cross_entropy(scores, batch["labels"])}


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    model.eval()
    found = model(split.inputs).argmax(1)
    return (found == split.targets["label"]).double().mean().item()


def fit(config: Config, devices: Devices, run: RunFolder) -> float:
    """Train or resume a model, save it and its accuracy in the run folder."""
    data = load("digits", device=devices.device)
    with seeded(config.training.seed):
        model = make_model(config.hidden, config.dropout)
    steps = max(1, config.training.epochs * len(data.train) // config.training.batch_size)
    stage = open_run(run.path / "training", configs.dumps(config), devices=devices)
    train_stage(
        "training",
        [model],
        objective,
        config.training,
        [stage],
        {"images": data.train.inputs, "labels": data.train.targets["label"]},
        devices=devices,
        schedules={"noise": lambda step: config.noise * (1 - step / steps).clamp(min=0)},
        progress=lambda stage: TrainingProgress(),
    )
    share = accuracy(model.float(), data.test)
    if devices.is_first:
        with run.lock():
            save_model(run.model_dir, model.state_dict(), {"config": configs.dumps(config)})
            run.copy_stage_metrics([stage.path])
            run.finish({"accuracy": share}, device=devices.device)
    return share


def read_model(folder: Path) -> nn.Module:
    """Load the model of a finished run, without pickle."""
    tensors, description = load_model(RunFolder.open(folder).model_dir)
    config = configs.loads(Config, description["config"])
    model = make_model(config.hidden, config.dropout)
    model.load_state_dict(tensors)
    return model.float()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="folder of a new or interrupted run")
    action.add_argument("--evaluate", type=Path, metavar="FOLDER", help="folder of a finished run")
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a setting, such as training.epochs=3",
    )
    parser.add_argument("--devices", type=int, help="number of devices")
    options = parser.parse_args(arguments)
    try:
        if options.evaluate is not None:
            share = accuracy(read_model(options.evaluate), load("digits").test)
            print(f"accuracy {share:.4f}")
            return 0
        if options.devices is not None:
            options.assignments.append(f"training.devices={options.devices}")
        config = configs.override(Config(), options.assignments)
        devices = connect(config.training)
        run = open_run(options.out, configs.dumps(config), devices=devices)
        if run.status == "finished":
            print(f"{run.path} is finished: accuracy {run.result()['metrics']['accuracy']:.4f}")
            return 0
        share = fit(config, devices, run)
        if devices.is_first:
            print(f"accuracy {share:.4f}")
    except Interrupted as interruption:
        print(interruption, file=sys.stderr)
        return interruption.exit_code
    except (ConfigError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
