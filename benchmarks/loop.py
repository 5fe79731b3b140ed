"""What the training loop costs by itself, and what stacked runs cost: python -m benchmarks.loop.

On CUDA a step is replayed from a captured graph, compiled before or not; everywhere it is also
taken eagerly. Times are those of whole epochs on the host's clock, shuffling included, divided by
their steps.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.results import describe_environment
from benchmarks.turns import measure_in_turn
from benchmarks.units import format_ratio, format_seconds
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.models import Autoencoder, MixtureVAE, build_objective
from drpm.clustering.pipeline import build_schedules
from drpm.clustering.pretraining import ContrastiveModel, ContrastiveObjective
from drpm.clustering.views import choose_view
from drpm.factors.config import FactorsConfig
from drpm.factors.models import FactorObjective, FactorVAE
from drpm.factors.pairs import PairSampler, arm_world
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.models import MultitaskNetwork, MultitaskObjective
from drpm.nn import TaskPartition
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.compiling import compile_step
from drpm.training.config import TrainingConfig
from drpm.training.convolution import Conv2d
from drpm.training.devices import Devices
from drpm.training.graphs import CapturedStep
from drpm.training.program import Augmentation, BaseProgram, Batch, Objective, Program
from drpm.training.schedules import ExponentialSchedule, Schedule
from drpm.training.stacking import StackedProgram

BATCH_SIZE = 256
STACKED = 5
REPEATS = 5

Terms = dict[str, Tensor]


class Empty(nn.Module):
    """A model of one number: all that a step costs is what every step costs."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))


def empty_objective(
    model: Empty, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> Terms:
    return {"loss": model.number.square()}


class LeNet(nn.Module):
    """The multitask model: one encoder, a head for each of two digits."""

    def __init__(self, convolution: Callable[[int, int, int], nn.Module] = Conv2d) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            convolution(1, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            convolution(10, 20, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(320, 50),
            nn.ReLU(),
        )
        self.left, self.right = (
            nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10)) for _ in range(2)
        )


def lenet_objective(
    model: LeNet, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> Terms:
    code = model.encoder(batch["images"])
    left = functional.cross_entropy(model.left(code), batch["left"])
    right = functional.cross_entropy(model.right(code), batch["right"])
    return {"loss": (left + right) / 2, "left": left, "right": right}


class SplitLeNet(LeNet):
    """The same, its neurons split between the digits, for every image anew."""

    def __init__(self) -> None:
        super().__init__()
        self.split = TaskPartition(50, 2, in_features=50)


def split_lenet_objective(
    model: SplitLeNet, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> Terms:
    code = model.encoder(batch["images"])
    codes = model.split(code, code, temperature=schedule["temperature"])
    left = functional.cross_entropy(model.left(codes[0]), batch["left"])
    right = functional.cross_entropy(model.right(codes[1]), batch["right"])
    return {"loss": (left + right) / 2, "left": left, "right": right}


class VAE(nn.Module):
    """The clustering model: 784-500-500-2000, ten latent dimensions, and the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _layers(784, 500, 500, 2000)
        self.mean, self.log_variance = nn.Linear(2000, 10), nn.Linear(2000, 10)
        self.decoder = nn.Sequential(_layers(10, 2000, 500, 500), nn.Linear(500, 784))


def _layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU()))
    )


def vae_objective(
    model: VAE, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> Terms:
    images = batch["images"].flatten(1)
    code = model.encoder(images)
    mean, log_variance = model.mean(code), model.log_variance(code)
    noise = torch.randn(mean.shape, device=mean.device, generator=generator)
    found = model.decoder(mean + noise * (log_variance / 2).exp())
    error = functional.binary_cross_entropy_with_logits(found, images, reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    error, divergence = error / len(images), divergence / len(images)
    return {"loss": error + divergence, "error": error, "divergence": divergence}


CLUSTERING = presets.load(ClusteringConfig, "paper-cluster-fashion-mnist")


def make_clustering() -> nn.Module:
    """DRPM-VC after pretraining: its encoder stays as it is, and features come with the data."""
    model = MixtureVAE(28 * 28, CLUSTERING, "bernoulli")
    nn.init.normal_(model.prior.means)
    model.autoencoder.encoder.requires_grad_(False)
    return model


FACTORS = presets.load(FactorsConfig, "paper-factors")
ANGLES, IMAGE_SIZE = 4, 64  # of the arm that pairs show; how many angles there are costs no time


def make_pairs(device: str) -> Augmentation:
    return PairSampler(arm_world(device, angles=ANGLES, image_size=IMAGE_SIZE), 3)


@dataclass(frozen=True)
class Subject:
    """What is trained.

    Arguments:
        make: Makes one model.
        objective: What it minimises.
        data: The names of the tensors that it sees.
        schedules: Numbers that change with the step.
        augment: From a device to what makes a batch of what was drawn.
        batch_size: How many examples a step sees; none for the usual number.
    """

    make: Callable[[], nn.Module]
    objective: Objective
    data: tuple[str, ...]
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    augment: Callable[[str], Augmentation] | None = None
    batch_size: int | None = None


def clustering_subject(*settings: str) -> Subject:
    config = configs.override(CLUSTERING, settings)
    return Subject(
        make_clustering, build_objective(config), ("rows", "features"), build_schedules(config)
    )


def pretraining_subject() -> Subject:
    """What comes before: an autoencoder and two projectors, over two views of every image."""
    config, shape = CLUSTERING.pretraining, torch.Size((1, 28, 28))

    def make() -> ContrastiveModel:
        autoencoder = Autoencoder(shape.numel(), CLUSTERING.network, "bernoulli")
        model = ContrastiveModel(autoencoder, CLUSTERING.clusters)
        for part in model.untrained_modules(config.kind):
            part.requires_grad_(False)
        return model

    view = choose_view(config.views, shape)
    return Subject(make, ContrastiveObjective(config, view, shape), ("rows",))


def factors_subject(method: str, *settings: str) -> Subject:
    config = configs.override(FACTORS, [f"method={method}", *settings])
    return Subject(
        lambda: FactorVAE((3, IMAGE_SIZE, IMAGE_SIZE), config),
        FactorObjective(config),
        ("left",),  # only counted: pairs are drawn
        {"temperature": ExponentialSchedule(*config.temperature, 1000)},
        make_pairs,
        config.training.batch_size,
    )


MULTITASK = presets.load(MultitaskConfig, "paper-multitask-multimnist")
MANY_TASKS = 40


def multitask_subject(tasks: int, *settings: str) -> Subject:
    """The paper's network for two digits, or the same with more tasks."""
    config = configs.override(MULTITASK, settings)
    return Subject(
        lambda: MultitaskNetwork((1, 28, 28), [10] * tasks, config),
        MultitaskObjective([str(task) for task in range(tasks)]),
        ("images", "targets"),
        {"temperature": ExponentialSchedule(*config.temperature, 1000)},
        # Data is kept as bytes, and a column for every task.
        lambda device: (
            lambda batch, generator: {
                "images": (255 * batch["images"]).byte(),
                "targets": batch["targets"][..., :tasks],
            }
        ),
    )


SUBJECTS = {
    "empty model": Subject(Empty, empty_objective, ("left",)),
    "multitask LeNet": Subject(LeNet, lenet_objective, ("images", "left", "right")),
    # What the layer that splits neurons adds; DRPM-MTL has a second encoder besides.
    "multitask LeNet, split": Subject(
        SplitLeNet,
        split_lenet_objective,
        ("images", "left", "right"),
        {"temperature": ExponentialSchedule(1.0, 0.5, 1000)},
    ),
    # What torch makes of its own convolutions in stacked runs; alone, they are the same.
    "multitask LeNet, grouped convolutions": Subject(
        partial(LeNet, nn.Conv2d), lenet_objective, ("images", "left", "right")
    ),
    "clustering VAE": Subject(VAE, vae_objective, ("images",)),
    "contrastive pretraining": pretraining_subject(),
    "DRPM-VC": clustering_subject(),
    "DRPM-VC, exact": clustering_subject("objective=exact"),
    "DRPM-VAE": factors_subject("drpm"),
    "DRPM-VAE, exact": factors_subject("drpm", "objective=exact"),
    "HG-VAE": factors_subject("hg"),
    "Ada-VAE": factors_subject("ada"),
    "Label-VAE": factors_subject("label"),
    "ULS": multitask_subject(2, "method=uls"),
    "DRPM-MTL": multitask_subject(2, "method=drpm"),
    "ULS, 40 tasks": multitask_subject(MANY_TASKS, "method=uls", "network.width=64"),
    "DRPM-MTL, 40 tasks": multitask_subject(
        MANY_TASKS, "method=drpm", "network.width=64", "partition=network", "size_penalty=0"
    ),
}


@dataclass(frozen=True)
class Timing:
    """Seconds a step.

    Arguments:
        model: One of the subjects.
        step: ``graph``, ``compile`` (and captured) or ``eager``.
        matmul: The precision of float32 matrix products, as torch names it.
        batch_size: How many examples it sees.
        alone: One run.
        stacked: Five stacked runs; none where that says nothing.
    """

    model: str
    step: str
    matmul: str
    batch_size: int
    alone: float
    stacked: float | None

    @property
    def ratio(self) -> float | None:
        return None if self.stacked is None else self.stacked / self.alone


def make_data(examples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(examples, 1, 28, 28, generator=generator)
    return {
        "images": images,
        "rows": images.flatten(1),
        "features": torch.rand(examples, CLUSTERING.network.encoder[-1], generator=generator),
        "left": torch.randint(10, (examples,), generator=generator),
        "right": torch.randint(10, (examples,), generator=generator),
        "targets": torch.randint(10, (examples, MANY_TASKS), generator=generator),
    }


def batch_size_of(subject: Subject) -> int:
    return min(BATCH_SIZE, subject.batch_size or BATCH_SIZE)


def make_program(subject: Subject, runs: int | None, device: str, steps: int) -> BaseProgram:
    batch_size = batch_size_of(subject)
    config = TrainingConfig(batch_size=batch_size, learning_rate=1e-4)
    data = make_data(steps * batch_size)
    chosen = {name: data[name] for name in subject.data}
    augment = None if subject.augment is None else subject.augment(device)
    options: Any = {
        "devices": Devices(device),
        "schedules": subject.schedules,
        "augment": augment,
    }
    if runs is None:
        return Program(subject.make(), subject.objective, chosen, config, **options)
    models = [subject.make() for _ in range(runs)]
    return StackedProgram(models, subject.objective, chosen, config, **options)


def seconds_per_step(program: BaseProgram, step: Callable[[], None]) -> float:
    """The median over some epochs, after one to warm up."""
    times = []
    for _ in range(REPEATS + 1):
        _wait(program.device)
        start = time.perf_counter()
        program.shuffle()
        for _ in range(program.steps_per_epoch):
            step()
        _wait(program.device)
        times.append((time.perf_counter() - start) / program.steps_per_epoch)
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Measurement(NamedTuple):
    """What is measured.

    Arguments:
        matmul: The precision of float32 matrix products, as torch names it.
        step: ``graph``, ``compile`` (and captured) or ``eager``.
        model: One of the subjects.
        device: Where.
        steps: In an epoch.
    """

    matmul: str
    step: str
    model: str
    device: str
    steps: int


def prepare(wanted: Measurement) -> Callable[[], Timing]:
    """Make ready a subject, alone and stacked; what is returned takes the time of both."""
    torch.set_float32_matmul_precision(wanted.matmul)
    subject = SUBJECTS[wanted.model]
    stacked = None if wanted.model == "empty model" else prepare_step(wanted, STACKED)
    alone = prepare_step(wanted, None)

    def measure() -> Timing:
        return Timing(
            wanted.model,
            wanted.step,
            wanted.matmul,
            batch_size_of(subject),
            seconds_per_step(*alone),
            None if stacked is None else seconds_per_step(*stacked),
        )

    return measure


def prepare_step(wanted: Measurement, runs: int | None) -> tuple[BaseProgram, Callable[[], None]]:
    """A program and its step, as it is wanted: compiled, captured, or as it is.

    Arguments:
        wanted: What is measured.
        runs: How many are stacked; none for one run by itself.
    """
    program = make_program(SUBJECTS[wanted.model], runs, wanted.device, wanted.steps)
    if wanted.step == "compile" and not compile_step(program):
        raise RuntimeError(f"The step of {wanted.model!r} was not compiled; see above.")
    captured = wanted.step != "eager" and program.device.type == "cuda"
    return program, CapturedStep(program) if captured else program.step


def measure_all(wanted: Sequence[Measurement], workers: int) -> list[Timing]:
    found = []
    before = torch.get_float32_matmul_precision()
    try:
        for timing in measure_in_turn(prepare, wanted, workers):
            found.append(timing)
            print(json.dumps(asdict(timing)), flush=True)
    finally:
        torch.set_float32_matmul_precision(before)
    return found


def make_table(timings: Sequence[Timing]) -> Table:
    table = Table(title="One training step")
    for heading in ("model", "batch", "step", "float32 products"):
        table.add_column(heading)
    for heading in ("one run", f"{STACKED} stacked runs", "ratio"):
        table.add_column(heading, justify="right")
    for timing in timings:
        stacked = "" if timing.stacked is None else format_seconds(timing.stacked)
        ratio = "" if timing.ratio is None else format_ratio(timing.ratio)
        alone = format_seconds(timing.alone)
        table.add_row(
            timing.model,
            str(timing.batch_size),
            timing.step,
            timing.matmul,
            alone,
            stacked,
            ratio,
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="where (default: a GPU if there is one)")
    parser.add_argument("--steps", type=int, help="steps an epoch (default: 200, on the CPU 10)")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, help="which (default: all)")
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=("compile", "graph", "eager"),
        help="forms of a step (default: all, on the CPU eager)",
    )
    parser.add_argument(
        "--products",
        nargs="+",
        choices=("highest", "high"),
        help="how float32 matrices are multiplied (default: both, on the CPU highest)",
    )
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file as well")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="how many are compiled at once, before they are timed one by one (default: 1)",
    )
    options = parser.parse_args(arguments)
    on_cuda = torch.device(options.device).type == "cuda"
    wanted = [
        Measurement(*chosen, options.device, options.steps or (200 if on_cuda else 10))
        for chosen in product(
            options.products or (("highest", "high") if on_cuda else ("highest",)),
            options.forms or (("compile", "graph", "eager") if on_cuda else ("eager",)),
            options.models or list(SUBJECTS),
        )
    ]
    timings = measure_all(wanted, options.workers)
    environment = describe_environment(options.device)
    # Those of the laws' benchmark.
    del environment["settings"]
    document: dict[str, Any] = {
        "environment": environment,
        "steps": [{**asdict(timing), "ratio": timing.ratio} for timing in timings],
    }
    Console().print(make_table(timings))
    text = json.dumps(document, indent=2)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
