"""The hyperparameters of supervised partitioning, and the settings of a run."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.experiments import Job, option
from drpm.training.config import TrainingConfig, check_setting, settings

Fraction = Annotated[float, Field(gt=0, lt=1)]


@settings
class SupervisedConfig:
    """A network that partitions a batch into its classes.

    Args:
        hidden: Widths of the fully connected layers, with ReLU between them.
        scale: Distance between the log-scores of neighboring classes.
        smoothing: Weight of a uniform distribution in the predicted probabilities. It bounds the
            loss of a misplaced element.
        size_weights: Candidate weights of the size term. The one with the best F1 score on the
            held-out part of the training set is kept.
        held_out: Fraction of the training set to compare candidates, if there are several.
        temperature: Temperature of the relaxation (classes, sizes and order) at the start and at
            the end of training.
        prediction_temperature: Temperature of an element's class at prediction.
        training: Training settings. Every batch of ``batch_size`` elements is partitioned as a
            whole, also in evaluation.
    """

    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (256, 128)
    scale: PositiveFloat = 0.03
    smoothing: Fraction = 0.1
    size_weights: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)] = (0.001, 0.01, 0.1)
    held_out: Fraction = 0.1
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.2)
    prediction_temperature: PositiveFloat = 0.05
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=20, batch_size=256, learning_rate=1e-3)
    )

    def __post_init__(self) -> None:
        check_setting(self.training, "devices", "1 for this model", lambda count: count == 1)
        check_setting(
            self, "size_weights", "numbers that differ", lambda found: len(set(found)) == len(found)
        )


@dataclass(frozen=True)
class SupervisedJob(Job):
    """The settings of one run of ``drpm supervised``."""

    command: ClassVar[str] = "supervised"
    section: ClassVar[str] = "supervised"
    experiment: ClassVar[str] = "drpm.supervised.experiment:Supervised"
    help: ClassVar[str] = """Learn to partition batches of a labeled data set into its classes.

    Run the same command again to resume an interrupted run. The output folder
    contains labels.csv, the model, figures and an HTML report.
    """

    data: str = "digits"
    options: tuple[str, ...] = ()
    fingerprint: str = ""
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    target: str | None = option(
        None,
        "The target to learn, if the data has several.",
        metavar="NAME",
        shown="label, or the first",
    )
