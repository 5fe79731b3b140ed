"""An application defined outside the package: ordered groups of equal size.

    python -m examples.ordered_groups --groups 3 --out out/groups

A network learns scores that split the rows of a table into low, middle and high. The target column
determines the true partition of every batch; the loss is its negative exact log-probability.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from drpm import RandomPartition
from drpm.experiments import JOBS, Evaluation, Experiment, Job
from drpm.report.plots import FigureSpec, pack_figures
from drpm.training import config as configs
from drpm.training.checkpoint import save_model
from drpm.training.config import TrainingConfig, settings
from drpm.training.devices import Devices, seeded
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.runs import RunFolder, open_run


@settings
class GroupsConfig:
    """The hyperparameters.

    Args:
        groups: Number of groups.
        hidden: Width of the hidden layer.
        training: Training settings.
    """

    groups: int = 3
    hidden: int = 32
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=20, batch_size=30, learning_rate=1e-2)
    )


@dataclass(frozen=True)
class GroupsJob(Job):
    """The settings of one run."""

    command: ClassVar[str] = "groups"
    section: ClassVar[str] = "ordered"
    experiment: ClassVar[str] = "examples.ordered_groups:Groups"
    help: ClassVar[str] = "Split rows into ordered groups of equal size."
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = {"groups": {"help": "Number of groups."}}

    ordered: GroupsConfig = field(default_factory=GroupsConfig)


class Rows(NamedTuple):
    """Training and test rows with their targets."""

    train: Tensor
    train_target: Tensor
    test: Tensor
    test_target: Tensor


def partition(target: Tensor, groups: int) -> Tensor:
    """The partition of rows into groups of equal size, the largest targets first: (K, n)."""
    rank = target.argsort(descending=True).argsort()
    members = rank * groups // len(target)
    return (torch.arange(groups)[:, None] == members).float()


def objective(
    model: nn.Module, batch: dict[str, Tensor], schedule: Any, generator: Any
) -> dict[str, Tensor]:
    groups = int(model.groups)
    law = RandomPartition(model.score(batch["rows"]).squeeze(-1), torch.zeros(groups))
    loss = -law.log_prob(partition(batch["target"], groups)) / len(batch["target"])
    return {"loss": loss}


class Scorer(nn.Module):
    """From rows (n, d) to log-scores (n, 1)."""

    def __init__(self, columns: int, config: GroupsConfig) -> None:
        super().__init__()
        self.groups = config.groups
        layers = [nn.Linear(columns, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1)]
        self.score = nn.Sequential(*layers)


class Groups(Experiment[GroupsJob, Rows, Scorer]):
    """Ordered groups of the rows of scikit-learn's diabetes table."""

    scores: ClassVar[Mapping[str, str]] = {"accuracy": "ACC"}
    outputs: ClassVar[tuple[str, ...]] = ("training",)

    def load(self, job: GroupsJob, device: torch.device) -> Rows:
        data = load_diabetes()
        rows = torch.tensor(data.data / data.data.std(0), dtype=torch.float32)
        target = torch.tensor(data.target, dtype=torch.float32)
        return Rows(rows[::2], target[::2], rows[1::2], target[1::2])

    def fit(self, job: GroupsJob, data: Rows, folder: Path, **options: Any) -> Scorer:
        with seeded(job.seed):
            model = Scorer(data.train.shape[1], job.config)
        train_stage(
            "training",
            [model],
            objective,
            job.config.training,
            [open_run(folder / "training", configs.dumps(job.config))],
            {"rows": data.train, "target": data.train_target},
            devices=Devices(options["device"]),
            progress=options["progress"],
        )
        return model

    def evaluate(
        self, job: GroupsJob, model: Scorer, data: Rows, run: RunFolder, progress: ProgressFactory
    ) -> Evaluation:
        save_model(run.model_dir, model.state_dict(), {"kind": "groups"})
        run.copy_stage_metrics([run.path / "training"])
        with torch.no_grad():
            found = partition(model.score(data.test).squeeze(-1), model.groups)
        table = partition(data.test_target, model.groups) @ found.T
        names = [f"group {number}" for number in range(model.groups)]
        shares = (table / table.sum(1, keepdim=True)).numpy()
        title = "True groups (rows) and predicted groups (columns)"
        about = "Fractions of the test rows of each true group."
        figures = pack_figures([FigureSpec("matrix", "groups", shares, names, names, title, about)])
        accuracy = float(table.trace() / table.sum())
        facts = {"data": {"name": "diabetes", "test examples": len(data.test)}}
        return Evaluation({"accuracy": accuracy}, figures, facts)

    def title(self, job: GroupsJob, data: Rows) -> str:
        return f"diabetes: {job.config.groups} ordered groups"


JOBS["groups"] = "examples.ordered_groups:GroupsJob"

if __name__ == "__main__":
    import typer

    from drpm.cli.commands import make_command

    app = typer.Typer()
    app.command()(make_command(GroupsJob))
    app()
