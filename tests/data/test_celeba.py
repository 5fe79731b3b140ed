"""CelebA from small files in the true format."""

from pathlib import Path

import pytest
import torch

from drpm.data import DataError, load
from tests.data.formats import write_celeba


@pytest.fixture
def celeba(folder: Path) -> Path:
    write_celeba(folder / "celeba")
    return folder / "celeba"


def test_images_attributes_and_split(celeba: Path) -> None:
    dataset = load("celeba", num_tasks=3)
    assert dataset.input_shape == (3, 64, 64)
    assert (len(dataset.train), len(dataset.test)) == (3, 2)
    # Grays 0, 20 and 40 to learn from, 60 and 80 in the validation part; their mean is 20.
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
    other = load("celeba", num_tasks=1, evaluate_on="test")
    assert list(other.test.targets) == ["Bald"]
    assert other.test.targets["Bald"].tolist() == [0]
    # The training split was decoded once for both.
    caches = sorted((celeba / "cache").iterdir())
    assert [cache.name.split("-")[0] for cache in caches] == ["test", "train", "validation"]
    assert torch.equal(other.train.inputs, dataset.train.inputs)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("list_attr_celeba.txt", "  -1  -1  -1", "  -1  -1", "1 or -1 for each attribute"),
        ("list_attr_celeba.txt", "  -1  -1  -1", "  -1  0  -1", "1 or -1 for each attribute"),
        ("list_eval_partition.txt", "000002.jpg 0", "000002.jpg 5", "0, 1 or 2 for each image"),
        ("list_eval_partition.txt", "000002.jpg 0\n", "", "0, 1 or 2 for each image"),
        ("list_eval_partition.txt", " 1\n", " 0\n", "no image to the validation part"),
    ],
)
def test_lists_that_are_wrong_are_refused(
    celeba: Path, file: str, old: str, new: str, complaint: str
) -> None:
    path = celeba / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=complaint):
        load("celeba", num_tasks=3)


def test_images_that_are_wrong_are_named(celeba: Path) -> None:
    image = celeba / "img_align_celeba" / "000002.jpg"
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(DataError, match=r"000002\.jpg cannot be read as an image"):
        load("celeba", num_tasks=3)
    assert not list(celeba.rglob("*.npy"))
    image.unlink()
    with pytest.raises(DataError, match=r"000002\.jpg is listed but missing"):
        load("celeba", num_tasks=3)
