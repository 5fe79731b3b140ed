"""The hyperparameters of a network with several tasks, and the settings of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drpm.experiments import Job, option
from drpm.training.config import TrainingConfig, check_setting, settings

Method = Literal["drpm", "uls", "uncertainty", "gradient"]
Weighting = Literal["aligned-mtl", "mgda", "imtl-g"]

METHOD_NAMES: Final = {
    "uls": "ULS",
    "uncertainty": "uncertainty weights",
    "gradient": "combined gradients",
    "drpm": "DRPM-MTL",
}


@settings
class NetworkConfig:
    """The shared encoder, and the head of every task.

    Args:
        encoder: ``lenet``: two 5 x 5 convolutions; ``residual``: stages of two residual blocks
            each, every stage but the first halving the image.
        channels: Channels of the two convolutions, or of the stages.
        width: Neurons of the last shared layer, which tasks share.
        head: Hidden neurons of the head of each task; 0 for a single linear layer.
        dropout: Dropout probability of the hidden neurons of heads and of channels. ``lenet``:
            those of the second convolution, with one mask per batch. ``residual``: those between
            the convolutions of a block, by ``torch.nn.Dropout2d`` (the only one with rescaling).
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

    Args:
        method: ``drpm``: a partition gives each task its own neurons of the last shared layer;
            ``uls``: all tasks have all neurons, and their losses are averaged; ``uncertainty``:
            the same with learned weights of the losses; ``gradient``: the same with the gradients
            of the tasks combined at the shared layer, by ``weighting``.
        partition: For ``drpm``. ``sample``: predicted for each sample by a second encoder;
            ``network``: one for all samples.
        affinities: For ``drpm``: whether each task has its own scores of the neurons; not by
            default, as in the paper.
        common: For ``drpm``: whether to add a subset of neurons that all tasks use; not by default,
            as in the paper.
        clip: For ``drpm``: whether to clip soft masks to [0, 1]; not by default.
        task_order: For ``drpm``. ``given``: the first task has the first subset of the partition;
            ``reversed``: the last; ``shuffled``: a random one. The first and the last subset have
            sharper masks. The common subset is always the last.
        weighting: For ``gradient``: one of TorchJD's weightings.
        task_weights: One for each task, in any scale; empty for equal weights.
        size_penalty: For ``drpm``: weight of the penalty on unequal sizes. None: 0 for two tasks
            and otherwise one over the number of neurons, as in the paper, which prevents that one
            task takes all neurons.
        temperature: Temperature of the partition, at the start and at the end of training.
        evaluate_every: Epochs between evaluations on the test split.
        train_examples: Use only the first training examples; None for all.
        test_examples: The same for the test split.
        network: The layers.
        training: Training settings.
    """

    method: Method = "drpm"
    partition: Literal["sample", "network"] = "sample"
    # None instead of False keeps the digests of earlier settings.
    affinities: bool | None = None
    common: bool | None = None
    clip: bool | None = None
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
        check_setting(self.training, "devices", "1 for this model", lambda count: count == 1)
        if self.method == "gradient":
            # Its backward pass reads values and can be neither captured nor compiled.
            steps = "'auto' or 'eager' for the method 'gradient'"
            check_setting(self.training, "step", steps, lambda step: step in ("auto", "eager"))
        if self.method != "drpm":
            for name in ("affinities", "common"):
                check_setting(self, name, "unset unless the method is 'drpm'", lambda x: not x)


@dataclass(frozen=True)
class MultitaskJob(Job):
    """The settings of one run of ``drpm multitask``."""

    command: ClassVar[str] = "multitask"
    section: ClassVar[str] = "multitask"
    experiment: ClassVar[str] = "drpm.multitask.experiment:Multitask"
    help: ClassVar[str] = """Train a network on several tasks, and learn how they share its neurons.

    Run the same command again to resume an interrupted run. The output folder
    contains the model, figures and an HTML report.
    """
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"method": {"help": "drpm, uls, uncertainty or gradient.", "choices": get_args(Method)}}
    )

    data: str = option(
        "multimnist",
        "multimnist, mosaic, celeba, or your own images, whose label is a single task.",
        choices=("multimnist", "mosaic", "celeba"),
    )
    noise: Annotated[float, Field(ge=0, le=1)] | None = option(
        None,
        "Fraction of the right digit's pixels that are dropped in multimnist.",
        shown="none",
    )
    tasks: Annotated[int, Field(ge=1)] | None = option(
        None, "Number of tasks; by default 10 in mosaic and 40 in celeba."
    )
    options: tuple[str, ...] | None = None
    fingerprint: str = ""
    multitask: MultitaskConfig = field(default_factory=MultitaskConfig)
