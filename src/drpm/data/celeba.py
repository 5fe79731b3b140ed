"""CelebA: faces with forty attributes each."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.errors import DataError
from drpm.data.files import obtain
from drpm.data.folders import atomic_write, search_folders, writable_folder
from drpm.data.pictures import picture, without_warnings
from drpm.data.progress import track
from drpm.data.types import Dataset, DatasetSpec, Device, RemoteFile, Split

SIDE = 64
NUM_ATTRIBUTES = 40

IMAGES = RemoteFile("celeba/img_align_celeba", folder=True)
ATTRIBUTES = RemoteFile("celeba/list_attr_celeba.txt")
PARTITION = RemoteFile("celeba/list_eval_partition.txt")

_PARTS = {"train": 0, "validation": 1, "test": 2}

_INSTRUCTIONS = (
    "get the aligned images and the two lists from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (its terms forbid passing them on)"
)


class Listing(NamedTuple):
    """What the two lists say, image by image."""

    names: tuple[str, ...]
    parts: NDArray[np.int64]  # 0 train, 1 validation, 2 test
    attributes: dict[str, NDArray[np.int64]]  # 0 or 1, names in alphabetical order


def load(
    *,
    device: Device = "cpu",
    seed: int = 0,
    num_tasks: int = 40,
    evaluate_on: str = "validation",
) -> Dataset:
    """Faces (3, 64, 64) of the official split, the channels' means subtracted; 0/1 targets.

    The images are resized, not cropped. The pixels are in [0, 1] before the means of the training
    part are subtracted; they are kept in `preprocessing` as `mean`, shape (3, 1, 1).

    Args:
        device: where the tensors go.
        seed: of no effect.
        num_tasks: how many attributes are kept: the first, in alphabetical order.
        evaluate_on: what becomes the test part: the "validation" or the "test" split.
    """
    if evaluate_on not in ("validation", "test"):
        raise DataError(f"evaluate_on must be 'validation' or 'test', not '{evaluate_on}'.")
    _check_tasks(num_tasks, NUM_ATTRIBUTES)  # nobody has to fetch files to be told
    listing, folder = _find_listing()
    _check_tasks(num_tasks, len(listing.attributes))
    tasks = list(listing.attributes)[:num_tasks]

    def part(name: str) -> tuple[NDArray[np.uint8], dict[str, Tensor]]:
        chosen = np.flatnonzero(listing.parts == _PARTS[name])
        if len(chosen) == 0:
            raise DataError(f"{PARTITION.path} assigns no image to the {name} part.")
        pixels = _read_images(folder, [listing.names[index] for index in chosen], name)
        targets = {
            task: torch.from_numpy(listing.attributes[task][chosen]).to(device) for task in tasks
        }
        return pixels, targets

    train, train_targets = part("train")
    test, test_targets = part(evaluate_on)
    total = train.sum((0, 2, 3), dtype=np.int64)  # of the bytes: exact, and a quarter of the memory
    mean = (
        torch.from_numpy(total / (255 * len(train) * SIDE**2)).float().reshape(3, 1, 1).to(device)
    )
    return Dataset(
        "celeba",
        Split(_centred(train, mean), train_targets),
        Split(_centred(test, mean), test_targets),
        classes=dict.fromkeys(tasks, ("no", "yes")),
        preprocessing={"mean": mean},
    )


def _check_tasks(num_tasks: int, most: int) -> None:
    if not 1 <= num_tasks <= most:
        raise DataError(
            f"num_tasks must be from 1 to {most}, the number of attributes, not {num_tasks}."
        )


def _centred(pixels: NDArray[np.uint8], mean: Tensor) -> Tensor:
    return torch.from_numpy(pixels).to(mean.device).float().div_(255).sub_(mean)


def _find_listing() -> tuple[Listing, Path]:
    paths = obtain([IMAGES, ATTRIBUTES, PARTITION], instructions=_INSTRUCTIONS)
    return read_listing(paths[ATTRIBUTES.path], paths[PARTITION.path]), paths[IMAGES.path]


def read_listing(attributes: Path, partition: Path) -> Listing:
    """Read the list of attributes and that of the official split, and put them together."""
    lines = _lines(attributes)
    first, header = (*lines, "", "")[:2]
    count, titles, rows = first.strip(), header.split(), lines[2:]
    if not titles or not count.isdecimal():
        raise DataError(
            f"{attributes} should begin with the number of images and a line of attribute names."
        )
    if count != str(len(rows)):
        raise DataError(f"{attributes} announces {count} images, but lists {len(rows)}.")
    fields = [row.split() for row in rows]
    for number, row in enumerate(fields, start=3):
        if len(row) != len(titles) + 1:
            raise DataError(
                f"{attributes}, line {number}: there should be a name and {len(titles)} values, "
                f"but there are {len(row)} entries."
            )
    names = tuple(row[0] for row in fields)
    values = np.array([row[1:] for row in fields]).reshape(len(fields), len(titles))
    positive = values == "1"
    wrong = values[~positive & (values != "-1")]
    if len(wrong):
        raise DataError(f"{attributes} should hold only 1 and -1, but holds '{wrong[0]}'.")

    parts = {}
    for number, line in enumerate(_lines(partition), start=1):
        row = line.split()
        if len(row) != 2 or row[1] not in ("0", "1", "2"):
            raise DataError(f"{partition}, line {number}: there should be a name and 0, 1 or 2.")
        parts[row[0]] = int(row[1])
    unassigned = [name for name in names if name not in parts]
    if unassigned:
        raise DataError(
            f"{partition} does not list {unassigned[0]} ({len(unassigned):,} images in all), "
            f"which {attributes.name} does."
        )
    return Listing(
        names,
        np.array([parts[name] for name in names], np.int64),
        {title: positive[:, titles.index(title)].astype(np.int64) for title in sorted(titles)},
    )


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list ({error}).") from error


def _read_images(folder: Path, names: Sequence[str], part: str) -> NDArray[np.uint8]:
    """The images (N, 3, 64, 64), from the cache where they lie there."""
    sizes = _sizes(folder)
    found = [_locate(folder, name, sizes) for name in names]
    # Named after the images, as far as a glance at their sizes tells.
    state = hashlib.sha256()
    for name in found:
        state.update(f"{name} {sizes[name]}\n".encode())
    cache = f"celeba/cache/{part}-{SIDE}x{SIDE}-{state.hexdigest()[:16]}.npy"
    for searched in search_folders():
        cached = _read_cache(searched / cache)
        if cached is not None and cached.shape == (len(found), 3, SIDE, SIDE):
            return cached
    pixels = np.empty((len(found), 3, SIDE, SIDE), np.uint8)
    # Threads suffice: pillow decodes outside the interpreter's lock.
    with without_warnings(), ThreadPoolExecutor() as pool:
        decoded = pool.map(_decode, (folder / name for name in found))
        for index, image in enumerate(track(decoded, f"CelebA, {part}", len(found))):
            pixels[index] = image
    with atomic_write(writable_folder() / cache) as out:
        np.save(out, pixels, allow_pickle=False)
    return pixels


def _sizes(folder: Path) -> dict[str, int]:
    """The size of each file of the folder, read in one go: there are 200,000 of them."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}).") from error


def _locate(folder: Path, name: str, sizes: dict[str, int]) -> str:
    stem = name.rpartition(".")[0]
    for candidate in (name, f"{stem}.png", f"{stem}.jpg"):
        if candidate in sizes:
            return candidate
    raise DataError(f"{folder / name} is missing, though the lists name it.")


def _decode(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    with picture(path) as image:
        small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


def _read_cache(path: Path) -> NDArray[np.uint8] | None:
    try:
        with path.open("rb") as file:
            cached: NDArray[np.uint8] = npy.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):
        return None  # what cannot be read is made anew
    return cached if cached.dtype == np.uint8 else None


def inspect() -> None:
    """Check that the lists belong together and that every image they name is there."""
    listing, folder = _find_listing()
    sizes = _sizes(folder)
    for name in listing.names:
        _locate(folder, name, sizes)


SPEC = DatasetSpec(
    name="celeba",
    title="Faces with forty attributes each",
    source="Liu, Luo, Wang, Tang: Deep Learning Face Attributes in the Wild (2015)",
    licence="non-commercial research; may not be passed on",
    shapes="162,770 + 19,867 images (validation; 19,962 in test) of 3x64x64, 40 attributes",
    load=load,
    files=(IMAGES, ATTRIBUTES, PARTITION),
    options=("num_tasks", "evaluate_on"),
    instructions=_INSTRUCTIONS,
    inspect=inspect,
)
