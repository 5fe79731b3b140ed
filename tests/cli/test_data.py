"""``drpm data``: what it prints and writes, and how it refuses."""

import gzip
import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drpm.data import DATASETS
from tests.cli.commands import drpm, refusal
from tests.data.formats import write_celeba, write_mnist


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, an empty cache, and an empty folder to work in."""
    monkeypatch.setenv("DRPM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "data"


run, refused = partial(drpm, "data"), partial(refusal, "data")


def test_list(folder: Path) -> None:
    result = run("list")
    header, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(header) == len(lines[0])
    assert [line[0] for line in lines][:3] == ["digits", "mnist", "fashion-mnist"]
    states = {line[0]: line[1] for line in lines}
    assert (states["digits"], states["mnist"], states["arm"]) == ("yes", "no", "yes")
    entries = json.loads(run("list", "--json").stdout)
    assert len(entries) == len(lines)
    assert entries[0]["license"] == "CC BY 4.0"
    write_mnist(folder / "mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "mnist\t3 of 4 files\t" in run("list").stdout


@pytest.fixture
def own_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small MNIST whose hashes are known instead of those of the published one."""
    write_mnist(folder / "mnist")
    spec = DATASETS["mnist"]
    files = []
    for file in spec.files:
        content = gzip.decompress((folder / file.path).read_bytes())
        files.append(replace(file, content_sha256=hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(
        "drpm.data.catalogue.DATASETS", {**DATASETS, "mnist": replace(spec, files=tuple(files))}
    )
    return folder / "mnist"


def test_fetch(own_mnist: Path) -> None:
    path = own_mnist / "train-images-idx3-ubyte.gz"
    assert f"{path}\tverified" in run("fetch", "mnist").stdout
    assert len(json.loads(run("fetch", "mnist", "--json").stdout)) == 4
    assert run("fetch", "digits").stdout == "digits needs no files.\n"


def test_damaged_and_missing_files_are_named_with_the_remedy(own_mnist: Path) -> None:
    path = own_mnist / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    other = own_mnist / "train-labels-idx1-ubyte.gz"
    other.write_bytes((own_mnist / "t10k-labels-idx1-ubyte.gz").read_bytes())
    for command in ("fetch", "check"):
        message = refused(command, "mnist")
        assert f"{path} is damaged (cannot be read" in message
        assert f"{other} is damaged (has a different hash)" in message
        assert "drpm data fetch mnist" in message
    reports = json.loads(run("check", "mnist", "--json", code=1).stdout)
    assert [report["state"] for report in reports] == ["damaged"] * 2 + ["verified"] * 2
    path.unlink()
    other.unlink()
    message = refused("check", "mnist")
    assert message.startswith("2 of 4 files of mnist are missing; put mnist/train-images-idx3")
    assert str(own_mnist.parent) in message
    assert message.endswith("; run drpm data fetch mnist.")


def test_fetch_says_what_to_put_where(folder: Path) -> None:
    for command in ("fetch", "check"):
        message = refused(command, "celeba")
        assert "celeba/list_attr_celeba.txt" in message
        assert str(folder) in message
        assert "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html" in message


def test_check_accepts_what_is_right(folder: Path) -> None:
    run("check", "digits")
    write_celeba(folder / "celeba")
    result = run("check", "celeba")
    assert f"{folder / 'celeba' / 'img_align_celeba'}\tpresent" in result.stdout
    (folder / "celeba" / "img_align_celeba" / "000003.jpg").unlink()
    assert "000003.jpg is listed but missing" in refused("check", "celeba")


def test_show_writes_a_picture() -> None:
    result = run("show", "digits")
    assert "1,442 training and 355 test examples of shape 1x8x8" in result.stdout
    with Image.open("out/data/digits.png") as image:
        assert image.format == "PNG"
    assert "part must be" in refused("show", "digits", "--part", "all")


def test_show_takes_own_data_and_options() -> None:
    Path("mine.csv").write_text("1,2,a\n2,5,b\n4,3,a\n")
    result = run("show", "mine.csv", "-o", "header=false", "-o", "label_column=column 3", "--json")
    facts = json.loads(result.stdout)
    assert facts["input_shape"] == [2]
    assert facts["targets"] == {"column 3": 2}
    assert facts["split"] is False
    assert Path(facts["picture"]).is_file()
    np.save("pictures.npy", np.zeros((4, 5, 5), np.uint8))
    result = run("show", "pictures.npy", "--out", "deep/down/sheet.png")
    assert result.stdout.startswith("pictures.npy: 4 examples of shape 1x5x5.")
    assert Path("deep/down/sheet.png").is_file()


@pytest.mark.parametrize("shape", [(30, 1, 8, 8), (7, 64, 48, 3), (30, 1), (9, 40)])
def test_every_kind_of_data_has_a_picture(shape: tuple[int, ...]) -> None:
    inputs = np.random.default_rng(0).random(shape)
    np.savez("mine.npz", x=inputs, y=np.arange(len(inputs)) % 3)
    run("show", "mine.npz", "--part", "test")
    with Image.open("out/data/mine.png") as image:
        assert len(np.unique(np.asarray(image))) > 10
