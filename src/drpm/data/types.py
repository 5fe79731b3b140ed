"""What a data set is once loaded, and what is known of it before."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Device = str | torch.device

EMPTY: Mapping[str, Any] = MappingProxyType({})


class DataError(ValueError):
    """Data that cannot be used; the message names the file, and what was expected and found."""


def reason(error: BaseException) -> str:
    """The first sentence of an error message, to be quoted in another message."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("Error tokenizing data. C error: ")  # pandas
    return line.split(". ")[0].rstrip(".:")


@dataclass(frozen=True)
class Split:
    """One split of a data set: whole tensors on one device.

    Args:
        inputs: (N, ...) float32. Images are (N, channels, height, width) with values in [0, 1]
            unless the data set says otherwise; tables are (N, columns), standardized.
        targets: By name, (N,) int64 for classes and (N, ...) float for numbers.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=lambda: EMPTY)

    def __post_init__(self) -> None:
        for name, target in self.targets.items():
            if len(target) != len(self.inputs):
                raise ValueError(
                    f"The target '{name}' has {len(target)} entries for {len(self.inputs)} inputs."
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: Device) -> "Split":
        """The same split on another device."""
        targets = {name: target.to(device) for name, target in self.targets.items()}
        return Split(self.inputs.to(device), targets)


@dataclass(frozen=True)
class Dataset:
    """A loaded data set.

    Args:
        name: Its name in the registry, or the file it came from.
        train: The training split.
        test: The test split; the same object as ``train`` if the data has no split.
        classes: The class names of each target that has classes.
        columns: The column names of a table.
        preprocessing: The constants that were applied to the inputs, such as the ``mean`` and
            ``std`` of each column.
    """

    name: str
    train: Split
    test: Split
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    columns: tuple[str, ...] = ()
    preprocessing: Mapping[str, Tensor] = field(default_factory=lambda: EMPTY)

    @property
    def input_shape(self) -> torch.Size:
        """The shape of one input."""
        return self.train.inputs.shape[1:]

    def to(self, device: Device) -> "Dataset":
        """The same data set on another device."""
        train = self.train.to(device)
        test = train if self.test is self.train else self.test.to(device)
        preprocessing = {name: x.to(device) for name, x in self.preprocessing.items()}
        return replace(self, train=train, test=test, preprocessing=preprocessing)


@dataclass(frozen=True)
class RemoteFile:
    """A file or folder of a data set, and where to download it.

    Args:
        path: Its place under the data folder, such as "mnist/t10k-labels-idx1-ubyte.gz".
        urls: Where to download it; later ones are mirrors. Empty if it must be put there by hand.
        known_hash: As pooch takes it: a SHA-256, or "md5:" and an MD5.
        content_sha256: Instead, the SHA-256 of the uncompressed content, so that a file that was
            compressed again is accepted.
        members: The files to extract from an archive, with their MD5 hashes.
        optional: Whether the data set can be loaded without it; it is then never downloaded.
    """

    path: str
    urls: tuple[str, ...] = ()
    known_hash: str | None = None
    content_sha256: str | None = None
    members: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    optional: bool = False


@dataclass(frozen=True)
class DatasetSpec:
    """What is known of a data set before it is loaded.

    Args:
        name: Its name in the registry.
        title: One line that describes it.
        source: Its authors, and where it is described.
        licence: Its terms of use.
        shapes: Sizes and shapes, for people.
        load: Called as ``load(device=..., seed=..., **options)``.
        files: The files it needs on disk.
        instructions: Where to get files that cannot be downloaded; a clause of a sentence.
        sheet_options: The options with which its inputs are images, for a contact sheet.
        inspect: Checks the structure of files that have no published hash.
    """

    name: str
    title: str
    source: str
    licence: str
    shapes: str
    load: Callable[..., Dataset]
    files: tuple[RemoteFile, ...] = ()
    instructions: str = ""
    sheet_options: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    inspect: Callable[[], object] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options of ``load``."""
        return option_names(self.load)


def option_names(load: Callable[..., Dataset]) -> tuple[str, ...]:
    """The keyword arguments of a loader besides the device and the seed."""
    parameters = inspect.signature(load).parameters.values()
    names = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY]
    return tuple(name for name in names if name not in ("device", "seed"))
