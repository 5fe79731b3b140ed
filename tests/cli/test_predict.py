"""``drpm predict``: the clusters of new data, from the folder of a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from drpm.clustering import load_clustering
from tests.cli.commands import SMALL_CLUSTERING, drpm, refusal

SMALL = [*SMALL_CLUSTERING, "--clusters=3"]


def run(*arguments: object) -> str:
    return drpm(*arguments).output


def make_table(seed: int = 0) -> pd.DataFrame:
    """Three groups; the second column is a time, which single precision would round."""
    generator = np.random.default_rng(seed)
    group = np.arange(90) % 3
    columns = {
        "height": 1000 + 400 * (group == 1),
        "time": 1.7e9 + 600 * (group == 2),
        "share": 0.1 + 0.2 * group,
    }
    deviations = {"height": 20, "time": 30, "share": 0.02}
    frame = pd.DataFrame(columns) + generator.normal(0, list(deviations.values()), (90, 3))
    return frame.assign(label=np.array(["x", "y", "z"])[group])


def make_images(folder: Path, count: int, channels: int = 3) -> None:
    folder.mkdir()
    pixels = np.random.default_rng(count).integers(0, 256, (count, 6, 5, 3), np.uint8)
    for index, image in enumerate(pixels):
        values = image if channels == 3 else image[..., 0]
        Image.fromarray(values).save(folder / f"{index:02d}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data and the run of a table."""
    folder = tmp_path_factory.mktemp("predict")
    make_table().to_csv(folder / "table.csv", index=False)
    run("cluster", folder / "table.csv", *SMALL, "--out", folder / "run")
    return folder


@pytest.fixture
def trained(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return place / "run"


def test_the_data_of_the_run_has_the_labels_of_the_run(trained: Path, place: Path) -> None:
    text = run("predict", trained, place / "table.csv")
    assert text.endswith("Labels: table-labels.csv\n")
    assert "limits" not in text
    found = pd.read_csv("table-labels.csv", dtype=str)
    assert list(found) == ["index", "cluster", "confidence"]
    expected = pd.read_csv(trained / "labels.csv", dtype=str)
    pd.testing.assert_frame_equal(found, expected.drop(columns="split"))
    facts = json.loads(run("predict", trained, place / "table.csv", "--out", "a/b.csv", "--json"))
    assert facts["labels"] == "a/b.csv"
    assert Path("a/b.csv").read_bytes() == Path("table-labels.csv").read_bytes()
    clusters = found.astype(float).groupby("cluster")["confidence"]
    for each in facts["clusters"]:
        if each["examples"]:
            values = clusters.get_group(each["cluster"])
            assert each["examples"] == len(values)
            assert each["mean_confidence"] == pytest.approx(values.mean(), rel=1e-5)
    assert sum(each["examples"] for each in facts["clusters"]) == 90


@pytest.mark.parametrize("name", ["new.csv", "new.npy", "new.parquet"])
def test_new_rows_are_scaled_as_in_training(trained: Path, name: str) -> None:
    if name == "new.parquet":
        pytest.importorskip("pyarrow")
    # Other means and deviations than those of the run; one row has neither.
    frame = make_table(1).drop(columns="label").iloc[1::3]
    model = load_clustering(trained / "model")
    rows = model.to_rows(frame.to_numpy()).double()
    confidence, cluster = model.to(torch.float64).predict_proba(rows).max(-1)
    for count in (len(frame), 1):
        part = frame[:count]
        if name == "new.csv":
            part.to_csv(name, index=False)
        elif name == "new.npy":
            np.save(name, part.to_numpy())
        else:
            part.to_parquet(name)
        run("predict", trained, name, "--overwrite")
        found = pd.read_csv("new-labels.csv")
        assert found["cluster"].tolist() == cluster[:count].tolist()
        np.testing.assert_allclose(found["confidence"], confidence[:count], rtol=1e-5)


def test_columns_are_matched_by_name(trained: Path, place: Path) -> None:
    frame = make_table()
    frame[["share", "label", "time", "height"]].to_csv("turned.csv", index=False)
    run("predict", trained, "turned.csv")
    renamed = frame.rename(columns={"label": "kind"})
    renamed.to_csv("kinds.csv", index=False)
    run("predict", trained, "kinds.csv", "-o", "label_column=kind")
    expected = pd.read_csv(trained / "labels.csv").drop(columns="split")
    for name in ("turned", "kinds"):
        pd.testing.assert_frame_equal(pd.read_csv(f"{name}-labels.csv"), expected)


def test_other_columns_are_refused(trained: Path) -> None:
    frame = make_table().drop(columns="label")
    frame.rename(columns={"time": "date"}).to_csv("date.csv", index=False)
    assert "but lacks time and also has date." in refusal("predict", trained, "date.csv")
    frame.drop(columns="share").to_csv("two.csv", index=False)
    assert "but lacks share." in refusal("predict", trained, "two.csv")
    np.save("two.npy", frame.to_numpy()[:, :2])
    assert "inputs of shape (3,)" in refusal("predict", trained, "two.npy")
    assert not list(Path().glob("*-labels.csv"))


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(Path("old"), 40)
    run("cluster", "old", *SMALL, "--out", "run")
    run("predict", "run", "old")
    expected = pd.read_csv("run/labels.csv", dtype=str).drop(columns="split")
    pd.testing.assert_frame_equal(pd.read_csv("old-labels.csv", dtype=str), expected)
    assert list(expected) == ["index", "cluster", "confidence", "file"]
    # One gray image is shown to the model as three equal channels.
    make_images(Path("gray"), 1, channels=1)
    run("predict", "run", "gray")
    image = np.asarray(Image.open("gray/00.png"), np.float32) / np.float32(255)
    model = load_clustering("run/model")
    probs = model.predict_proba(model.to_rows(np.stack([image] * 3)[None]))
    (found,) = pd.read_csv("gray-labels.csv").to_dict("records")
    assert found["cluster"] == probs.argmax().item()
    assert found["confidence"] == pytest.approx(probs.max().item(), rel=1e-4)
    assert found["file"] == "00.png"
    text = refusal("predict", "run", "gray", "-o", "image_size=4", "--out", "other.csv")
    assert "gray must have inputs of shape (3, 6, 5), like the run, but got (1, 4, 4)." in text


def test_both_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("cluster", "digits", *SMALL, "--method=gmm", "--out", "run")
    run("predict", "run", "digits")
    assert Path("digits-labels.csv").read_bytes() == Path("run/labels.csv").read_bytes()


def test_an_existing_file_is_kept(trained: Path, place: Path) -> None:
    Path("table-labels.csv").write_text("mine")
    assert "table-labels.csv already exists" in refusal("predict", trained, place / "table.csv")
    assert Path("table-labels.csv").read_text() == "mine"
    run("predict", trained, place / "table.csv", "--overwrite")
    assert len(pd.read_csv("table-labels.csv")) == 90


def test_folders_without_a_finished_run_are_refused(trained: Path, place: Path) -> None:
    data = place / "table.csv"
    Path("empty").mkdir()
    for name in ("empty", "nothing"):
        assert f"The folder {name} contains no run" in refusal("predict", name, data)
    shutil.copytree(trained, "study/seed-0")
    shutil.copytree(trained, "study/seed-1")
    assert "choose one of study/seed-0, study/seed-1." in refusal("predict", "study", data)
    run("predict", "study/seed-1", data, "--out", "old.csv")
    Path("study/seed-0/result.json").unlink()
    assert "study/seed-0 is not finished" in refusal("predict", "study/seed-0", data)


def test_a_header_alone_is_refused(trained: Path) -> None:
    Path("header.csv").write_text("height,time,share\n")
    text = refusal("predict", trained, "header.csv")
    assert "header.csv should have 1 or more rows" in text
