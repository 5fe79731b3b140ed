"""What a data set is once loaded, and what is known of it before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

Device = str | torch.device


def _nothing() -> Mapping[str, Tensor]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Split:
    """One part of a data set: whole tensors on one device.

    Args:
        inputs: shape (N, ...), float32. Images are (N, channels, height, width) with values in
            [0, 1] unless the set says otherwise; tables are (N, columns), standardised.
        targets: what may be predicted, by name: (N,) int64 for classes, (N, ...) float for
            numbers. May be empty.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=_nothing)

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
        name: its name in the registry, or the file it came from.
        train: the part to learn from.
        test: the part to be judged on; the very same object where the data has no split.
        classes: the names of the classes of each target that has classes. May be empty.
        columns: the names of the columns of a table. May be empty.
        preprocessing: the constants that were applied to the inputs, such as the `mean` and
            `std` of each column, so that new data can be treated alike. May be empty.
    """

    name: str
    train: Split
    test: Split
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    columns: tuple[str, ...] = ()
    preprocessing: Mapping[str, Tensor] = field(default_factory=_nothing)

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
    """A file of a data set, or a folder of files, and where it can be had.

    Args:
        path: where it lies under the data folder, such as "mnist/t10k-labels-idx1-ubyte.gz".
        urls: the addresses it is served from, canonical first; empty where it has none.
        sha256: of the file as served; None where it is not known for certain.
        content_sha256: of the uncompressed content. A file that was compressed anew has another
            hash but the same content, and is accepted.
        md5: of the file as served, for sets whose publishers state only that.
        size: of the file as served, in bytes.
        members: the files to take out of an archive, each named as it lies beside the archive
            afterwards. With these in place the archive itself is not needed.
        members_md5: of each of these files; empty where they are not known.
        folder: whether it is a folder.
        optional: whether the set can be loaded without it; it is then never downloaded.
    """

    path: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    content_sha256: str | None = None
    md5: str | None = None
    size: int | None = None
    members: tuple[str, ...] = ()
    members_md5: tuple[str, ...] = ()
    folder: bool = False
    optional: bool = False


@dataclass(frozen=True)
class DatasetSpec:
    """What is known of a data set before it is loaded.

    Args:
        name: its name in the registry.
        title: one line that says what it is.
        source: who made it, and where it is described.
        licence: under which terms it may be used.
        shapes: sizes and shapes, for people.
        files: what must lie on the disk; empty where the set is embedded or generated.
        load: called as `load(device=..., seed=..., **options)`; returns the set on that device.
        options: the names of its further options.
        instructions: where to get, by hand, files that have no address; a clause of a sentence.
        sheet_options: the options a contact sheet loads it with.
        inspect: reads the structure of its files and refuses what is wrong with it, for files
            whose publishers state no hash.
    """

    name: str
    title: str
    source: str
    licence: str
    shapes: str
    load: Callable[..., Dataset]
    files: tuple[RemoteFile, ...] = ()
    options: tuple[str, ...] = ()
    instructions: str = ""
    sheet_options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    inspect: Callable[[], None] | None = None
