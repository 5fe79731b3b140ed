"""The settings of a network with several tasks: everything that is needed to train it again."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drpm.training.config import TrainingConfig, check_setting, require_one_device, settings
from drpm.training.errors import ConfigError

Method = Literal["drpm", "uls", "uncertainty", "gradient"]
Weighting = Literal["aligned-mtl", "mgda", "imtl-g"]

METHOD_NAMES: Final = {
    "uls": "ULS",
    "uncertainty": "uncertainty weights",
    "gradient": "combined gradients",
    "drpm": "DRPM-MTL",
}

# The only method that looks at a setting.
_METHOD_OF: Final = {
    "partition": "drpm",
    "task_order": "drpm",
    "size_penalty": "drpm",
    "temperature": "drpm",
    "weighting": "gradient",
}


@settings
class NetworkConfig:
    """The shared encoder, and the head of every task.

    Arguments:
        encoder: ``lenet``: two convolutions of 5 x 5 pixels; ``residual``: stages of two residual
            blocks each, every stage but the first halving the image.
        channels: Of the two convolutions, or of the stages.
        width: Neurons of the last shared layer, those that tasks share.
        head: Hidden neurons of every task's own head; with 0 it is a single linear layer.
        dropout: The probability with which a channel of the second convolution, one choice for a
            whole batch, and a hidden neuron of a head is set to zero. What is left is not rescaled.
    """

    encoder: Literal["lenet", "residual"] = "lenet"
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10, 20)
    width: PositiveInt = 50
    head: NonNegativeInt = 50
    dropout: Annotated[float, Field(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        if self.encoder == "lenet":
            check_setting(self, "channels", "two numbers for 'lenet'", lambda each: len(each) == 2)


@settings
class MultitaskConfig:
    """A network that several tasks share.

    Arguments:
        method: ``drpm``: a partition gives every task its own neurons of the last shared layer;
            ``uls``: all tasks have all neurons, and their losses are averaged; ``uncertainty``:
            the same, with weights of the losses that are learned; ``gradient``: the same, with the
            tasks' gradients combined where the tasks part, by ``weighting``.
        partition: For ``drpm``. ``sample``: predicted for every sample, by an encoder of its own;
            ``network``: one for all samples.
        task_order: For ``drpm``. ``given``: the first task has the first subset of the partition;
            ``reversed``: the last; ``shuffled``: any, by the seed. The first and the last of
            several subsets have neurons that are more clearly theirs.
        weighting: For ``gradient``: which of TorchJD's weightings.
        task_weights: One for each task, in any scale; none at all for equal ones.
        size_penalty: For ``drpm``, the weight of the penalty on sizes that differ. None: one over
            the number of neurons, as the paper has it, for more than two tasks, one of which would
            else take all neurons at the start; and nothing for two.
        temperature: Of the partition, at the start and at the end of training; the model is used
            at the latter.
        evaluate_every: Epochs from one look at the test part to the next.
        train_examples: Take only the first so many; none for all.
        test_examples: The same for the test part.
        network: The layers.
        training: How it is trained.
    """

    method: Method = "drpm"
    partition: Literal["sample", "network"] = "sample"
    task_order: Literal["given", "reversed", "shuffled"] = "given"
    weighting: Weighting = "aligned-mtl"
    task_weights: tuple[PositiveFloat, ...] = ()
    size_penalty: NonNegativeFloat | None = None
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.5)
    evaluate_every: PositiveInt = 1
    train_examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=200, batch_size=256, learning_rate=5e-4, betas=(0.95, 0.999)
        )
    )

    def __post_init__(self) -> None:
        require_one_device(self.training)
        # Its backward pass looks at numbers, which neither a graph nor a compiler can.
        if self.method == "gradient" and self.training.step not in ("auto", "eager"):
            raise ConfigError(
                "training.step must be 'auto' or 'eager' for the method 'gradient', but got "
                f"{self.training.step!r}."
            )


def refuse_unused(config: MultitaskConfig, assignments: Sequence[str]) -> None:
    """Refuse what somebody set by name and the method would not look at.

    What a preset says for other methods may stay: it serves all of them.

    Arguments:
        config: The settings.
        assignments: What was set, as ``name=value``.
    """
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        method = _METHOD_OF.get(name, config.method)
        if method != config.method:
            raise ConfigError(
                f"{name} must be left out for the method {config.method!r}, since only "
                f"{method!r} looks at it, but got {assignment!r}."
            )
