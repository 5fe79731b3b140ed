"""What is known of each data set before it is loaded, from ``catalogue.toml``.

Nothing here imports torch, so that a shell completes names at once.
"""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drpm.data.types import Dataset


class DataError(ValueError):
    """Data that cannot be used; the message names the file, and what was expected and found."""


def reason(error: BaseException) -> str:
    """The first sentence of an error message, to be quoted in another message."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("Error tokenizing data. C error: ")  # pandas
    return line.split(". ")[0].rstrip(".:")


@dataclass(frozen=True)
class RemoteFile:
    """A file or folder of a data set, and where to download it."""

    path: str  # under the data folder, such as "mnist/t10k-labels-idx1-ubyte.gz"
    urls: tuple[str, ...] = ()  # and mirrors; empty if the user must put the file there
    known_hash: str | None = None  # a SHA-256, or "md5:" and an MD5
    content_sha256: str | None = None  # of a .gz file, instead: of its uncompressed content
    # To extract from a .tar archive, each with its MD5; the archive is then not needed.
    members: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetSpec:
    """A data set before it is loaded.

    The arguments of its loader are keyword-only: options, whose values must match the annotations,
    and ``device`` and ``seed`` where the loader needs them.
    """

    name: str
    title: str  # one line
    source: str  # its authors, and where it is described
    licence: str
    shapes: str  # sizes and shapes, for people
    loader: str  # as package.module:function
    files: tuple[RemoteFile, ...] = ()
    instructions: str = ""  # where to get files that cannot be downloaded; ends an error message
    sheet_options: Mapping[str, Any] = field(default_factory=dict)  # of load, for drpm data show
    inspector: str = ""  # a function for drpm data check, which calls it after the hashes

    @property
    def load(self) -> Callable[..., "Dataset"]:
        found: Callable[..., Dataset] = resolve_name(self.loader)
        return found

    @property
    def options(self) -> dict[str, Any]:
        """The names and annotations of the options of ``load``."""
        return loader_options(self.load)


def loader_options(load: Callable[..., "Dataset"]) -> dict[str, Any]:
    """The keyword arguments of a loader besides the device and the seed, and their annotations."""
    parameters = inspect.signature(load).parameters.values()
    found = {x.name: x.annotation for x in parameters if x.kind is x.KEYWORD_ONLY}
    return {name: kind for name, kind in found.items() if name not in ("device", "seed")}


def _read() -> dict[str, DatasetSpec]:
    text = (resources.files(__package__) / "catalogue.toml").read_text(encoding="utf-8")
    specs: dict[str, DatasetSpec] = {}
    for name, entry in tomllib.loads(text).items():
        mirrors, owner = entry.pop("mirrors", ()), entry.pop("files_of", None)
        files = [] if owner is None else [*specs[owner].files]
        for file in entry.pop("files", ()):
            last = file["path"].rpartition("/")[2]
            files.append(RemoteFile(urls=tuple(f"{each}/{last}" for each in mirrors), **file))
        specs[name] = DatasetSpec(name, files=tuple(files), **entry)
    return specs


DATASETS: Mapping[str, DatasetSpec] = MappingProxyType(_read())
