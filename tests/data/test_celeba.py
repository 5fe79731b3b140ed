"""CelebA from small files in the true format."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drpm.data import DataError, load
from tests.data.formats import write_celeba


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    return tmp_path / "celeba"


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_images_attributes_and_split(folder: Path, suffix: str) -> None:
    write_celeba(folder, suffix=suffix)
    dataset = load("celeba", num_tasks=3)
    assert dataset.input_shape == (3, 64, 64)
    assert (len(dataset.train), len(dataset.test)) == (3, 2)
    # Greys 0, 20 and 40 to learn from, 60 and 80 in the validation part; their mean is 20.
    levels = dataset.train.inputs.mean((1, 2, 3)) * 255
    torch.testing.assert_close(levels, torch.tensor([-20.0, 0.0, 20.0]), atol=0.1, rtol=0)
    levels = dataset.test.inputs.mean((1, 2, 3)) * 255
    torch.testing.assert_close(levels, torch.tensor([40.0, 60.0]), atol=0.1, rtol=0)
    assert dataset.preprocessing["mean"].shape == (3, 1, 1)
    # Alphabetical, though the file has another order; image i has the bits of i.
    assert list(dataset.train.targets) == ["Bald", "Smiling", "Young"]
    assert dataset.train.targets["Smiling"].tolist() == [0, 1, 0]
    assert dataset.train.targets["Bald"].tolist() == [0, 0, 1]
    assert dataset.test.targets["Smiling"].tolist() == [1, 0]
    assert dataset.classes["Bald"] == ("no", "yes")


def test_the_test_part_can_be_chosen(folder: Path) -> None:
    write_celeba(folder)
    dataset = load("celeba", num_tasks=1, evaluate_on="test")
    assert len(dataset.test) == 1
    assert list(dataset.test.targets) == ["Bald"]
    assert dataset.test.targets["Bald"].tolist() == [0]


def test_images_are_decoded_once(folder: Path) -> None:
    write_celeba(folder)
    first = load("celeba", num_tasks=3)
    caches = sorted((folder / "cache").iterdir())
    assert [cache.name.split("-")[0] for cache in caches] == ["train", "validation"]
    times = [cache.stat().st_mtime_ns for cache in caches]
    second = load("celeba", num_tasks=3)
    assert times == [cache.stat().st_mtime_ns for cache in caches]
    assert torch.equal(first.train.inputs, second.train.inputs)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("list_attr_celeba.txt", "  -1  -1  -1", "  -1  -1", "1 or -1 for each attribute"),
        ("list_attr_celeba.txt", "  -1  -1  -1", "  -1  0  -1", "1 or -1 for each attribute"),
        ("list_attr_celeba.txt", "  -1  -1  -1", "  -1" * 5, "1 or -1 for each|cannot"),
        ("list_eval_partition.txt", "000002.jpg 0", "000002.jpg 5", "0, 1 or 2 for each image"),
        ("list_eval_partition.txt", "000002.jpg 0\n", "", "0, 1 or 2 for each image"),
        ("list_eval_partition.txt", " 1\n", " 0\n", "no image to the validation part"),
    ],
)
def test_lists_that_are_wrong_are_refused(
    folder: Path, file: str, old: str, new: str, complaint: str
) -> None:
    write_celeba(folder)
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=complaint):
        load("celeba", num_tasks=3)


def test_images_that_are_wrong_are_named(folder: Path) -> None:
    write_celeba(folder)
    image = folder / "img_align_celeba" / "000002.jpg"
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(DataError, match=r"000002\.jpg cannot be read as an image"):
        load("celeba", num_tasks=3)
    assert not list(folder.rglob("*.npy"))
    image.unlink()
    with pytest.raises(DataError, match=r"000002\.jpg is missing, but is in the lists"):
        load("celeba", num_tasks=3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_tasks": 41}, "'num_tasks' should be less than or equal to 40, not 41"),
        (
            {"num_tasks": 1, "evaluate_on": "train"},
            "'evaluate_on' should be 'validation' or 'test', not",
        ),
    ],
)
def test_bad_options(folder: Path, options: dict[str, object], complaint: str) -> None:
    write_celeba(folder)
    with pytest.raises(DataError, match=complaint):
        load("celeba", **options)


@pytest.mark.parametrize(("axis", "side", "place"), [(1, 178, 90), (0, 218, 5)])
def test_images_become_smaller_by_triangles(folder: Path, axis: int, side: int, place: int) -> None:
    """One bright column or row, which no crop has left out: every pixel of the small image has its
    share of it, in closed form."""
    write_celeba(folder, suffix=".png")
    pixels = np.zeros((218, 178, 3), np.uint8)
    pixels.swapaxes(0, axis)[place] = 255
    Image.fromarray(pixels).save(folder / "img_align_celeba" / "000001.png")
    dataset = load("celeba", num_tasks=3)
    found = 255 * (dataset.train.inputs[0] + dataset.preprocessing["mean"])
    scale = side / 64
    centres, lines = (np.arange(64) + 0.5) * scale, np.arange(side) + 0.5
    weights = np.clip(1 - np.abs(lines - centres[:, None]) / scale, 0, None)
    shares = weights[:, place] / weights.sum(1)
    assert (shares > 0).sum() > 1
    expected = torch.from_numpy(255 * shares).float().expand(3, 64, 64)
    if axis == 0:
        expected = expected.mT
    # Half a byte, and Pillow's integers.
    torch.testing.assert_close(found, expected, atol=1, rtol=0)
