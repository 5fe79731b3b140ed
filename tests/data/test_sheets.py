"""Contact sheets: a picture for every kind of data set."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drpm.data import DataError, Dataset, Split, load
from drpm.data.sheets import contact_sheet


def dataset(
    inputs: torch.Tensor, num_targets: int = 1, num_classes: int = 3, **fields: object
) -> Dataset:
    label = torch.arange(len(inputs)) % num_classes
    names = [f"target {index}" for index in range(num_targets)]
    split = Split(inputs, dict.fromkeys(names, label))
    classes = dict.fromkeys(names, tuple(f"class {index}" for index in range(num_classes)))
    return Dataset("mine", split, split, classes, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "num_targets", "num_classes"),
    [
        ((30, 1, 8, 8), 1, 3),
        ((30, 3, 64, 48), 1, 12),
        ((30, 3, 8, 8), 2, 3),
        ((30, 3, 8, 8), 7, 3),
        ((7, 1, 8, 8), 0, 3),
        ((1, 1, 8, 8), 1, 3),
        ((30, 1), 0, 3),
        ((30, 5), 1, 3),
        ((30, 24), 1, 20),
        ((30, 40), 1, 3),
        ((500, 40), 0, 3),
    ],
)
def test_every_kind_has_a_picture(
    tmp_path: Path, shape: tuple[int, ...], num_targets: int, num_classes: int
) -> None:
    path = contact_sheet(
        dataset(torch.rand(shape), num_targets, num_classes), tmp_path / "new" / "sheet.png"
    )
    with Image.open(path) as image:
        assert min(image.size) > 100
        assert len(np.unique(np.asarray(image))) > 10
    assert [file.name for file in path.parent.iterdir()] == ["sheet.png"]


def test_what_was_done_to_images_is_undone(tmp_path: Path) -> None:
    images = torch.rand(24, 3, 8, 8)
    mean, std = torch.full((3, 1, 1), 0.4), torch.full((3, 1, 1), 0.3)
    plain = contact_sheet(dataset(images), tmp_path / "plain.png")
    treated = dataset((images - mean) / std, preprocessing={"mean": mean, "std": std})
    restored = contact_sheet(treated, tmp_path / "restored.png")
    pictures = [np.asarray(Image.open(path), np.int64) for path in (plain, restored)]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shape \(2, 4, 4\) are neither images"):
        contact_sheet(dataset(torch.rand(9, 2, 4, 4)), tmp_path / "sheet.png")
    with pytest.raises(DataError, match="part must be 'train' or 'test', not 'all'"):
        contact_sheet(load("digits"), tmp_path / "sheet.png", part="all")
    for name in ("sheet.foo", "sheet"):
        with pytest.raises(DataError, match=rf"a PNG file, so .*{name} should end in \.png"):
            contact_sheet(load("digits"), tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"sheet\.png cannot be written"):
        contact_sheet(load("digits"), tmp_path / "file" / "sheet.png")
