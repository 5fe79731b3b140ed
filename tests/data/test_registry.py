"""The registry: what it names, and what it says to a name it does not know."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from drpm.data import DATASETS, DataError, Dataset, Split, load
from drpm.data.fingerprints import fingerprint, fingerprint_tensors, known_by

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "data.md"


def test_every_set_is_there_and_described() -> None:
    assert list(DATASETS) == [
        "digits",
        "mnist",
        "fashion-mnist",
        "stl10",
        "celeba",
        "mpi3d",
        "multimnist",
        "mosaic",
        "arm",
    ]
    for name, spec in DATASETS.items():
        assert spec.name == name
        assert all((spec.title, spec.source, spec.licence, spec.shapes))
        for file in spec.files:
            assert not file.path.startswith("/")
            assert all(url.startswith("http") for url in file.urls)
            for known in (file.sha256, file.content_sha256):
                assert known is None or len(bytes.fromhex(known)) == 32
            for known in (file.md5, *file.members_md5):
                assert known is None or len(bytes.fromhex(known)) == 16
            assert len(file.members_md5) in (0, len(file.members))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("minst", "There is no data set 'minst': did you mean mnist or multimnist"),
        ("Digits", "did you mean digits"),
        ("fashion", "did you mean fashion-mnist"),
        ("cifar", "there are digits, mnist, fashion-mnist"),
        ("", "There is no data set ''"),
        ("folder/that/is/not/there", "folder/that/is/not/there does not exist"),
    ],
)
def test_an_unknown_name(name: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load(name)


def test_an_unknown_option() -> None:
    with pytest.raises(DataError, match="The data set 'digits' has no option 'noise': it has none"):
        load("digits", noise=1)
    with pytest.raises(DataError, match="no option 'variants': did you mean variant"):
        load("mpi3d", variants="toy")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        (
            "arm",
            {"num_train": "many"},
            "takes a whole number for the option 'num_train', not 'many'",
        ),
        ("arm", {"num_train": 2.5}, "takes a whole number"),
        ("arm", {"num_train": True}, "takes a whole number .* not True"),
        ("multimnist", {"noise": "loud"}, "takes a number for the option 'noise'"),
        ("stl10", {"unlabeled": 1}, "takes true or false for the option 'unlabeled', not 1"),
        ("stl10", {"network": 3}, "takes a text or Network for the option 'network'"),
        ("pictures/", {"image_size": "large"}, "takes a whole number or tuple for the option"),
    ],
)
def test_an_option_of_another_type(name: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load(name if name in DATASETS else f"{name}x.csv", **options)


def test_a_set_moves_as_a_whole() -> None:
    split = Split(torch.zeros(3, 2), {"label": torch.zeros(3, dtype=torch.int64)})
    dataset = Dataset("mine", split, split, preprocessing={"mean": torch.zeros(2)})
    moved = dataset.to("meta")
    assert moved.test is moved.train
    assert {moved.train.inputs.device.type, moved.train.targets["label"].device.type} == {"meta"}
    assert moved.preprocessing["mean"].device.type == "meta"
    assert moved.input_shape == (2,)


def test_targets_must_fit() -> None:
    with pytest.raises(ValueError, match="The target 'label' has 2 entries for 3 inputs"):
        Split(torch.zeros(3, 2), {"label": torch.zeros(2)})


def test_the_documentation_lists_every_set_file_option_and_hash() -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8")
    for name, spec in DATASETS.items():
        assert f"| `{name}` |" in text
        assert spec.licence in text
        missing = [option for option in spec.options if f"`{option}`" not in text]
        assert not missing
        for file in spec.files:
            for known in (file.sha256, file.content_sha256, file.md5, *file.members_md5):
                assert known is None or f"`{known}`" in text
            assert all(urlsplit(url).netloc in text for url in file.urls)


def test_what_data_is_known_by() -> None:
    """A name is enough for a set of the registry; of a file it is not."""
    digits = load("digits")
    assert known_by("digits", digits) == ""
    assert known_by("digits.csv", digits) == fingerprint(digits)


def test_fingerprints_tell_data_apart() -> None:
    splits = [Split(torch.full((2, 3), value)) for value in (0.0, 0.0, 1.0)]
    train, same, other = splits
    assert fingerprint(Dataset("a", train, same)) == fingerprint(Dataset("b", train, same))
    assert fingerprint(Dataset("a", train, same)) != fingerprint(Dataset("a", train, other))
    turned = (fingerprint_tensors([("", torch.zeros(shape))]) for shape in ((2, 3), (3, 2)))
    assert len(set(turned)) == 2
