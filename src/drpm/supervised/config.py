"""The settings of a supervised partition: everything that is needed to learn it again."""

from dataclasses import field
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drpm.training.config import TrainingConfig, check_setting, require_one_device, settings

Fraction = Annotated[float, Field(gt=0, lt=1)]


@settings
class SupervisedConfig:
    """A network that partitions a batch into its classes.

    Arguments:
        hidden: Widths of the network's layers, fully connected and with ReLU.
        scale: How far apart the log-scores of neighbouring classes are.
        smoothing: What part of a soft partition is even over all subsets when it is compared with
            the labels. It bounds what an element costs that is far from its place, so that one
            which could be of either of two classes is not put between them.
        size_weights: The candidates for the weight of the size term. Every one of them is tried,
            and the one with the best F1 score on the held-out part of the training set is kept.
        held_out: The part of the training set that candidates are judged on, and that no one
            learns from. With one candidate alone nothing is held out.
        temperature: Of what is relaxed (the class of an element, sizes and order), at the start and
            at the end of training.
        prediction_temperature: Of an element's class where a partition is predicted, which needs
            no gradients. The nearer to zero, the nearer is the partition to what the network says
            of every element by itself.
        training: How the network is trained. Its batches are what is partitioned, and those of
            the test set are as large.
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
        require_one_device(self.training)
        check_setting(
            self, "size_weights", "numbers that differ", lambda found: len(set(found)) == len(found)
        )
