"""The catalogue, content hashes, and what models need of a loaded data set."""

from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from drpm.data import DATASETS, DataError, Dataset, Split, load
from drpm.data.catalogue import content_hash, loader_options
from drpm.data.mpi3d import draw_indices
from drpm.data.own import table
from drpm.data.types import (
    class_labels,
    class_names,
    fingerprint,
    scale_of,
    scaled_rows,
    with_test_part,
)
from tests.data.formats import write_mnist


def test_the_documentation_lists_every_data_set_option_and_hash() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for name, spec in DATASETS.items():
        assert f"| `{name}` |" in text
        assert spec.license in text
        assert not [option for option in loader_options(spec.load) if f"`{option}`" not in text]
        for file in spec.files:
            known = [file.known_hash, file.content_sha256, *file.members.values()]
            hashes = [value.removeprefix("md5:") for value in known if value is not None]
            assert all(len(bytes.fromhex(value)) in (16, 32) for value in hashes)
            assert not [value for value in hashes if f"`{value}`" not in text]
            assert all(urlsplit(url).netloc in text for url in file.urls)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("", {}, "Unknown data set ''"),
        ("Digits", {}, "did you mean digits"),
        ("digits", {"noise": 1}, "The data set 'digits' has no option 'noise': it has none"),
        ("arm", {"num_train": 2.5}, "'num_train' .*integer, not 2.5"),
        ("arm", {"num_train": True}, "'num_train' .*integer, not True"),
        ("multimnist", {"noise": "loud"}, "'noise' .*number, not 'loud'"),
        ("multimnist", {"noise": 1.5}, "'noise' should be less than or equal to 1, not 1.5"),
        ("multimnist", {"noise": np.nan}, "'noise' should be less .* 1, not nan"),
        ("multimnist", {"num_train": 41}, "num_train must be from 1 to 40, but got 41"),
        ("multimnist", {"num_test": 0}, "num_test must be from 1 to 20, but got 0"),
        ("mosaic", {"num_tasks": 0}, "'num_tasks' should be greater than 0, not 0"),
        ("celeba", {"num_tasks": 41}, "'num_tasks' should be less than or equal to 40, not 41"),
        ("celeba", {"evaluate_on": "train"}, "'evaluate_on' should be 'validation' or 'test'"),
        ("stl10", {"network": 3}, "'network' should be 'resnet50', not 3"),
        ("pictures/x.csv", {"image_size": "large"}, "'image_size' .*integer, not 'large'"),
    ],
)
def test_a_bad_name_or_option(
    folder: Path, name: str, options: dict[str, object], complaint: str
) -> None:
    write_mnist(folder / "mnist")
    with pytest.raises(DataError, match=complaint):
        load(name, **options)


def test_digits() -> None:
    digits, again = load("digits", seed=0), load("digits", seed=1)
    assert digits.input_shape == (1, 8, 8)
    assert (len(digits.train), len(digits.test)) == (1442, 355)
    assert (float(digits.train.inputs.min()), float(digits.train.inputs.max())) == (0, 1)
    # The split is fixed, and has a fifth of every digit.
    assert torch.equal(digits.test.inputs, again.test.inputs)
    train, test = (split.targets["label"].bincount() for split in (digits.train, digits.test))
    assert torch.equal(test, (train + test) // 5)


def test_content_hashes() -> None:
    digits = load("digits")
    # Run folders of users keep these.
    assert content_hash("digits.csv", digits).startswith("2e6be6f6b37daffa")
    assert content_hash("digits", digits) == ""
    train, same, other = (Split(torch.full((2, 3), value)) for value in (0.0, 0.0, 1.0))
    assert fingerprint(Dataset("a", train, same)) == fingerprint(Dataset("b", train, same))
    assert fingerprint(Dataset("a", train, same)) != fingerprint(Dataset("a", train, other))
    turned = Split(torch.zeros(3, 2))
    assert fingerprint(Dataset("a", train, train)) != fingerprint(Dataset("a", turned, turned))


@pytest.mark.unshifted
def test_random_streams(folder: Path) -> None:
    """A seed gives the same examples as when committed results were made."""
    write_mnist(folder / "mnist")
    mosaic, multimnist = load("mosaic", num_train=3, num_test=1), load("multimnist", num_train=3)
    assert mosaic.train.targets["task_03"].tolist() == [2, 6, 7]
    assert multimnist.train.targets["right"].tolist() == [7, 8, 7]
    assert [indices.tolist() for indices in draw_indices(0, 2, 1)] == [[489644, 906695], [719259]]


def test_classes() -> None:
    targets = {name: torch.tensor([0, 1]) + k for k, name in enumerate(("kind", "label", "sort"))}
    split = Split(torch.zeros(2, 1), targets)
    for names, expected in ((("kind", "label"), "label"), (("kind", "sort"), "kind"), ((), None)):
        data = Dataset("some", split, split, {name: (name, "other") for name in names})
        assert class_labels(data, data.test) is targets.get(expected or "")
        assert class_names(data) == ((expected, "other") if expected else ())


@pytest.mark.parametrize(("count", "tested"), [(10, 2), (2, 1)])
def test_a_fifth_becomes_the_test_split(count: int, tested: int) -> None:
    whole = Split(torch.arange(float(count))[:, None], {"label": torch.arange(count)})
    data = Dataset("some", whole, whole)
    found, again = with_test_part(data), with_test_part(data)
    assert len(found.test) == tested
    both = torch.cat([found.train.inputs, found.test.inputs]).flatten()
    assert sorted(both.tolist()) == list(range(count))
    for part in (found.train, found.test):
        assert torch.equal(part.targets["label"], part.inputs.flatten().long())
    assert torch.equal(again.test.inputs, found.test.inputs)
    assert with_test_part(found) is found


def test_rows_are_scaled_to_the_last_bit() -> None:
    """Also where values are far larger than their differences."""
    raw = np.random.default_rng(0).normal(size=(20, 3)) * [1, 1e-3, 60] + [0, 5, 1.7e9]
    data = table("rows.csv", {name: raw[:, column] for column, name in enumerate("abc")})
    rows = scaled_rows("rows", raw, tuple(data.input_shape), *scale_of(data))
    assert rows.dtype == torch.float64
    assert torch.equal(rows.float(), data.train.inputs)
