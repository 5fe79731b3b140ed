"""The time of training steps: compiled and captured in a CUDA graph, or eager on the CPU.

Times are those of whole epochs, shuffling included, divided by their steps. DRPM-VC is
also measured with five stacked seeds.
"""

import json
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.laws import describe_environment, format_seconds
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.models import OBJECTIVES, MixtureVAE
from drpm.clustering.pipeline import build_schedules
from drpm.factors.config import FactorsConfig
from drpm.factors.models import FactorVAE, factor_objective
from drpm.factors.pairs import PairSampler, arm_world
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.models import MultitaskNetwork, multitask_objective
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import Partitioner, SupervisedObjective
from drpm.training import config as configs
from drpm.training import program as programs
from drpm.training.compiling import CapturedStep, compile_step
from drpm.training.config import TrainingConfig, load_preset
from drpm.training.devices import Devices, matmul_precision
from drpm.training.program import Augmentation, Batch, Objective, Program, Schedule

BATCH_SIZE = 256
PAIRS = 64  # in a batch
STACKED, REPEATS = 5, 5
ANGLES, IMAGE_SIZE = 4, 64  # of the arm; the number of angles does not affect the time
FEATURES = 2000  # the width of the encoder of DRPM-VC
TASKS = 2
TEMPERATURE: dict[str, Schedule] = {"temperature": programs.ExponentialSchedule(1.0, 0.5, 1000)}


@dataclass(frozen=True)
class Subject:
    """A model in training, and whether stacked runs of it are measured as well."""

    make: Callable[[], nn.Module]
    objective: Objective
    data: tuple[str, ...]
    schedules: Mapping[str, Schedule] = field(default_factory=lambda: TEMPERATURE)
    augment: Callable[[str], Augmentation] | None = None
    batch_size: int = BATCH_SIZE
    stacked: bool = False


class LeNet(nn.Module):
    """A plain encoder with a head for each of two digits."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()]
        convolutions += [nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()]
        self.encoder = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(320, 50), nn.ReLU())
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10)) for _ in range(TASKS)
        )


def lenet_objective(
    model: LeNet, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator | None
) -> dict[str, Tensor]:
    code = model.encoder(batch["images"].float() / 255)
    losses = [
        functional.cross_entropy(head(code), batch["targets"][:, task])
        for task, head in enumerate(model.heads)
    ]
    return {"loss": torch.stack(losses).mean()}


def clustering_subject(*settings: str) -> Subject:
    """DRPM-VC after pretraining: its encoder is frozen, and features come with the data."""
    preset = load_preset(ClusteringConfig, "paper-cluster-fashion-mnist")
    config = configs.override(preset, settings)

    def make() -> nn.Module:
        model = MixtureVAE(28 * 28, config, "bernoulli")
        nn.init.normal_(model.prior.means)
        model.autoencoder.encoder.requires_grad_(False)
        return model

    objective, schedules = OBJECTIVES[config.method], build_schedules(config)
    return Subject(make, objective, ("rows", "features"), schedules, stacked=True)


def factors_subject(*settings: str) -> Subject:
    config = configs.override(load_preset(FactorsConfig, "paper-factors"), settings)
    return Subject(
        lambda: FactorVAE((3, IMAGE_SIZE, IMAGE_SIZE), config),
        factor_objective,
        ("labels",),  # only their number is used
        augment=lambda device: PairSampler(arm_world(device, ANGLES, IMAGE_SIZE), 3),
        batch_size=PAIRS,
    )


def multitask_subject(*settings: str) -> Subject:
    config = configs.override(load_preset(MultitaskConfig, "paper-multitask-multimnist"), settings)
    return Subject(
        lambda: MultitaskNetwork((1, 28, 28), dict.fromkeys(map(str, range(TASKS)), 10), config),
        multitask_objective,
        ("images", "targets"),
    )


def supervised_subject() -> Subject:
    config = load_preset(SupervisedConfig, "paper-supervised-mnist")
    return Subject(
        lambda: Partitioner((28 * 28,), 10, config),
        SupervisedObjective(config.size_weights[0]),
        ("rows", "labels"),
    )


SUBJECTS = {
    "DRPM-VC": clustering_subject(),
    "DRPM-VC, affinity": clustering_subject("partition=affinity"),
    "DRPM-VAE": factors_subject("method=drpm"),
    "HG-VAE": factors_subject("method=hg"),
    "Ada-VAE": factors_subject("method=ada"),
    "Label-VAE": factors_subject("method=label"),
    "multitask LeNet": Subject(LeNet, lenet_objective, ("images", "targets")),
    "ULS": multitask_subject("method=uls"),
    "DRPM-MTL": multitask_subject("method=drpm"),
    "supervised": supervised_subject(),
}


def make_data(examples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (examples, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return {
        "images": images,
        "rows": images.flatten(1) / 255,
        "features": torch.rand(examples, FEATURES, generator=generator),
        "labels": torch.randint(10, (examples,), generator=generator),
        "targets": torch.randint(10, (examples, TASKS), generator=generator),
    }


def make_program(subject: Subject, runs: int | None, device: str, steps: int) -> Program:
    """A program of some stacked runs, or of one."""
    batch_size = min(subject.batch_size, BATCH_SIZE)
    config = TrainingConfig(batch_size=batch_size, learning_rate=1e-4)
    data = make_data(steps * batch_size)
    chosen = {name: data[name] for name in subject.data}
    options: Any = {
        "devices": Devices(device),
        "schedules": subject.schedules,
        "augment": None if subject.augment is None else subject.augment(device),
    }
    models = subject.make() if runs is None else [subject.make() for _ in range(runs)]
    return Program(models, subject.objective, chosen, config, **options)


def seconds_per_step(program: Program) -> float:
    """The median over some epochs, after one to warm up."""
    on_cuda = program.device.type == "cuda"
    step = program.step
    wait = torch.cuda.synchronize if on_cuda else lambda: None
    if on_cuda:
        if not compile_step(program):
            raise RuntimeError("The step was not compiled; see above.")
        step = CapturedStep(program)  # type: ignore[assignment]
    times = []
    for _ in range(REPEATS + 1):
        wait()
        start = time.perf_counter()
        program.shuffle()
        for _ in range(program.steps_per_epoch):
            step()
        wait()
        times.append((time.perf_counter() - start) / program.steps_per_epoch)
    return statistics.median(times[1:])


def run(options: Namespace, path: Path) -> Iterator[Table]:
    """Measure the steps of all models, write them to a file after each, and return a table."""
    device = options.device
    on_cuda = torch.device(device).type == "cuda"
    steps = 1 if options.quick else 200 if on_cuda else 10
    document: dict[str, Any] = {"environment": describe_environment(device), "steps": []}
    for name in options.models or SUBJECTS:
        subject = SUBJECTS[name]
        with matmul_precision("high"):
            alone = seconds_per_step(make_program(subject, None, device, steps))
            several = make_program(subject, STACKED, device, steps) if subject.stacked else None
            stacked = seconds_per_step(several) if several else None
        found = {"model": name, "step": "compile" if on_cuda else "eager", "matmul": "high"}
        found |= {"batch_size": min(subject.batch_size, BATCH_SIZE), "alone": alone}
        found |= {"stacked": stacked, "ratio": stacked / alone if stacked else None}
        document["steps"].append(found)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    yield make_table(document["steps"])


def make_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="One training step")
    for heading in ("model", "batch", "step", "one run", f"{STACKED} stacked runs", "ratio"):
        table.add_column(heading, justify="right")
    for step in steps:
        times = [format_seconds(x) if x else "" for x in (step["alone"], step["stacked"])]
        ratio = "" if step["ratio"] is None else f"{step['ratio']:.2f}"
        table.add_row(step["model"], str(step["batch_size"]), step["step"], *times, ratio)
    return table
