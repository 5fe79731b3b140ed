"""Train a small classifier of handwritten digits, and resume it after an interruption.

    python examples/digits.py --out runs/digits --preset quick --set training.epochs=3
    python examples/digits.py --evaluate runs/digits

You can stop or kill the first command at any time; run it again to resume the training.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from drpm.data import Split, load
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, save_model
from drpm.training.config import TrainingConfig, load_preset
from drpm.training.devices import Devices, connect
from drpm.training.errors import ConfigError, Interrupted, RunError
from drpm.training.loop import TrainingProgress, train
from drpm.training.program import Batch, Program
from drpm.training.runs import RunFolder

PRESETS = Path(__file__).with_name("presets")


@dataclass(frozen=True)
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
        if self.hidden < 1:
            raise ConfigError(f"hidden must be at least 1, but got {self.hidden}.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), but got {self.dropout}.")
        if self.noise < 0:
            raise ConfigError(f"noise must be at least 0, but got {self.noise}.")


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


def fit(config: Config, devices: Devices, run: RunFolder) -> dict[str, float]:
    """Train or resume a model, and save the model and its result in the run folder."""
    data = load("digits", device=devices.device)
    torch.manual_seed(config.training.seed)
    model = make_model(config.hidden, config.dropout)
    steps = max(1, config.training.epochs * len(data.train) // config.training.batch_size)
    program = Program(
        model,
        objective,
        {"images": data.train.inputs, "labels": data.train.targets["label"]},
        config.training,
        schedules={"noise": lambda step: config.noise * (1 - step / steps).clamp(min=0)},
        devices=devices,
    )

    def evaluate(_: int) -> dict[str, float]:
        description = {"hidden": config.hidden, "dropout": config.dropout}
        save_model(run.model_dir, program.model_state(), description)
        return {"accuracy": accuracy(model.float(), data.test)}

    return train(program, [run], evaluate=evaluate, progress=TrainingProgress())[0]


def read_model(folder: Path) -> nn.Module:
    """Load the model of a finished run, without pickle."""
    tensors, description = load_model(RunFolder.open(folder).model_dir)
    model = make_model(description["hidden"], description["dropout"])
    model.load_state_dict(tensors)
    return model.float()


def open_run(folder: Path, config: Config, devices: Devices) -> RunFolder:
    """Open the run in a folder, or create it; refuse a run with different settings."""
    text = configs.dumps(config)
    if devices.is_first and not (folder / "config.toml").exists():
        RunFolder.create(folder, text)
    devices.barrier()
    run = RunFolder.open(folder)
    if run.config_text() != text:
        raise RunError(f"The run in {folder} has different settings; choose another folder.")
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="folder of a new or interrupted run")
    action.add_argument("--evaluate", type=Path, metavar="FOLDER", help="folder of a finished run")
    parser.add_argument("--preset", help="preset, such as quick")
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
        preset = options.preset
        config = Config() if preset is None else load_preset(Config, preset, folder=PRESETS)
        config = configs.override(config, options.assignments)
        devices = connect(config.training)
        run = open_run(options.out, config, devices)
        if run.status == "finished":
            print(f"{run.path} is finished: accuracy {run.result()['metrics']['accuracy']:.4f}")
            return 0
        if run.status == "interrupted" and devices.is_first:
            print(f"resuming {run.path}", file=sys.stderr)
        metrics = fit(config, devices, run)
        if devices.is_first:
            print(f"accuracy {metrics['accuracy']:.4f}")
    except Interrupted as interruption:
        print(interruption, file=sys.stderr)
        return interruption.exit_code
    except (ConfigError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
