"""Metadata of data sets, from ``catalogue.toml``, and loading by name.

Torch is imported only when data is loaded, for fast shell completion.
"""

import difflib
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from drpm.data.types import Dataset, Device


class DataError(ValueError):
    """Invalid data; the message has the file, and what was expected and found."""


def reason(error: BaseException) -> str:
    """The first sentence of an error message, to quote it in another message."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("Error tokenizing data. C error: ")  # pandas
    return line.split(". ")[0].rstrip(".:")


@dataclass(frozen=True)
class RemoteFile:
    """A file or folder of a data set, and where to download it."""

    path: str  # under the data folder, such as "mnist/t10k-labels-idx1-ubyte.gz"
    urls: tuple[str, ...] = ()  # with mirrors; empty if it must be downloaded manually
    known_hash: str | None = None  # a SHA-256, or "md5:" and an MD5
    content_sha256: str | None = None  # of a .gz file, instead: of its uncompressed content
    # Files to extract from a .tar archive, each with its MD5.
    members: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetSpec:
    """A data set before it is loaded.

    The keyword-only arguments of its loader are the options, validated by their annotations, and
    optionally ``device`` and ``seed``.
    """

    name: str
    title: str  # one line
    source: str  # its authors, and where it is described
    license: str
    shapes: str  # sizes and shapes, for people
    loader: str  # as package.module:function
    files: tuple[RemoteFile, ...] = ()
    instructions: str = ""  # for manual downloads; ends an error message
    sheet_options: Mapping[str, Any] = field(default_factory=dict)  # of load, for drpm data show
    inspector: str = ""  # a function that drpm data check calls after verifying the hashes

    @property
    def load(self) -> Callable[..., "Dataset"]:
        found: Callable[..., Dataset] = resolve_name(self.loader)
        return found


def loader_options(load: Callable[..., "Dataset"]) -> dict[str, Any]:
    """The options of a loader and their annotations."""
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


DATASETS: Mapping[str, DatasetSpec] = _read()


def spec_of(name: str) -> DatasetSpec:
    """Find a data set by name."""
    if name not in DATASETS:
        raise DataError(f"Unknown data set '{name}': {_did_you_mean(name, DATASETS)}")
    return DATASETS[name]


def load(
    name_or_path: str | Path,
    for_prediction: bool = False,
    /,
    *,
    device: "Device" = "cpu",
    seed: int = 0,
    **options: Any,
) -> "Dataset":
    """Load a data set by name, or your own data from a file or a folder of images.

    Args:
        name_or_path: A name of the catalogue, or a path: .npy, .npz, .csv, .parquet or a folder.
        for_prediction: Whether the data is input for a trained model: your own tables are then not
            scaled, in double precision and without labels.
        device: Where the tensors are stored.
        seed: Seed of generated data sets.
        options: Options of the data set; for your own data, the arguments of
            :func:`drpm.data.own.load`.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape
        (1442, 355, torch.Size([1, 8, 8]))
    """
    import drpm.data.own as own

    name = str(name_or_path)
    path = Path(name).expanduser()
    is_path = path.exists() or path.suffix.lower() in own.SUFFIXES or len(path.parts) > 1
    if name and is_path and name not in DATASETS:
        _check_options(options, own.load, f"The data of {name}")
        return own.load(path, for_prediction, **options).to(device)
    spec = spec_of(name)
    _check_options(options, spec.load, f"The data set '{name}'")
    taken = inspect.signature(spec.load).parameters
    both = {"device": device, "seed": seed}
    options |= {name: value for name, value in both.items() if name in taken}
    return spec.load(**options).to(device)


def file_names(name: str, count: int) -> list[str]:
    """The file names of a folder of ``count`` images; empty for other data."""
    import drpm.data.own as own

    folder = Path(name).expanduser()
    if name in DATASETS or not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in own.image_paths(folder)]
    if len(names) != count:
        raise DataError(f"The folder {folder} has changed while it was read; try again.")
    return names


def content_hash(name: str, data: "Dataset") -> str:
    """The fingerprint of your own data; empty for a data set of the catalogue."""
    from drpm.data.types import fingerprint

    return "" if name in DATASETS else fingerprint(data)


def _check_options(options: Mapping[str, Any], load: Callable[..., Any], owner: str) -> None:
    """Raise if an option is unknown or does not match the annotation of the loader."""
    known = loader_options(load)
    for name, value in options.items():
        if name not in known:
            raise DataError(f"{owner} has no option '{name}': {_did_you_mean(name, known)}")
        given = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        try:
            TypeAdapter(known[name]).validate_python(given, strict=True)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input ")
            raise DataError(f"{owner}: the option '{name}' {expected}, not {value!r}.") from None


def _did_you_mean(word: str, valid: Iterable[str]) -> str:
    names = list(valid)
    if close := difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.55):
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names)}." if names else "it has none."
