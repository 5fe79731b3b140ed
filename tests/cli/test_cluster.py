"""``drpm cluster``: from a data set or a file to labels, a model, figures and a page."""

import json
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from drpm.clustering.fitted import clustering_scores
from drpm.data import load
from drpm.training.runs import RunFolder
from tests.cli.commands import SMALL_CLUSTERING as SMALL
from tests.cli.commands import drpm, refusal
from tests.processes import python

STEPS = 50
DIGITS = [
    *("digits", *SMALL),
    "--set=pretraining.training.epochs=10",
    "--set=pretraining.training.checkpoint_steps=1",
]

# Of images with labels.
FIGURES = {"samples", "partition", "latent", "confusion", "sizes", "curves"}

cluster = partial(drpm, "cluster")


def labels(folder: Path) -> list[dict[str, str]]:
    return pd.read_csv(folder / "labels.csv", dtype=str).to_dict("records")


def result(folder: Path) -> dict[str, Any]:
    return RunFolder.open(folder).result()


def weights(folder: Path) -> bytes:
    (file,) = (folder / "model").glob("*.safetensors")
    return file.read_bytes()


def pictures(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "figures").iterdir()}


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file with the time it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def write_table(path: Path, kinds: list[str] | None = None) -> np.ndarray:
    """500 rows of three columns in three groups, far from mean 0 and deviation 1."""
    generator = np.random.default_rng(0)
    groups = np.arange(500) % 3
    centers = np.array([[1000.0, -5, 0.1], [1500, -7, 0.1], [1000, -5, 0.5]])
    table = centers[groups] + generator.normal(0, [20, 0.1, 0.02], (500, 3))
    frame = pd.DataFrame(table, columns=["height", "depth", "share"])
    frame = frame.assign(label=np.array(kinds)[groups]) if kinds else frame
    frame.to_csv(path, index=False, float_format="%.6g")
    return table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, clustered from a shell without anything in the way."""
    folder = tmp_path_factory.mktemp("cluster") / "whole"
    done = python("-m", "drpm", "cluster", *DIGITS, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert f"Labels: {folder / 'labels.csv'}\n" in done.stdout
    assert done.stdout.endswith(f"Report: {folder / 'index.html'}\n")
    return folder


def test_labels_and_scores(whole: Path) -> None:
    rows = labels(whole)
    assert list(rows[0]) == ["split", "index", "cluster", "confidence"]
    for split, count in (("train", 1442), ("test", 355)):
        indices = [int(row["index"]) for row in rows if row["split"] == split]
        assert indices == list(range(count))
    # The likeliest of ten clusters is never less likely than a tenth.
    assert all(0.0999 <= float(row["confidence"]) <= 1 for row in rows)
    clusters = [int(row["cluster"]) for row in rows if row["split"] == "test"]
    scores = clustering_scores(load("digits").test.targets["label"], clusters)
    metrics = result(whole)["metrics"]
    assert {name: metrics[name] for name in scores} == pytest.approx(scores)
    assert set(metrics) == {"nmi", "ari", "accuracy", "lower_bound", "neighbor_agreement"}


def test_the_result_figures_and_page(whole: Path) -> None:
    found = result(whole)
    facts = {"examples": 1442, "shape": "1 x 8 x 8", "test examples": 355}
    assert found["data"] == {"name": "digits", **facts}
    # Not the bound of the partition model, whose clusters are drawn together.
    assert found["names"]["lower_bound"] == "ELBO, Gaussian mixture"
    assert found["command"] == ["drpm", "cluster", *DIGITS, "--out", str(whole)]
    records = RunFolder.open(whole).metrics()
    times = [record["wall_time"] for record in records]
    assert times == sorted(times)
    assert times[-1] <= found["wall_time"]
    assert Counter(record["stage"] for record in records) == {"pretraining": STEPS, "training": 2}
    assert pictures(whole) == FIGURES
    page = (whole / "index.html").read_text(encoding="utf-8")
    # The thumbnails of the map too, which is no PNG itself.
    assert page.count("data:image/png;base64,") == len(FIGURES)
    assert "digits: 10 clusters" in page
    assert "ELBO, Gaussian mixture" in page


def test_a_second_call_does_nothing_new(whole: Path) -> None:
    before = contents(whole)
    again = cluster(*DIGITS, "--out", whole)
    assert contents(whole) == before
    assert again.stderr == ""
    assert again.stdout.endswith(f"Report: {whole / 'index.html'}\n")


def test_killed_and_resumed(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = ["drpm", "cluster", *DIGITS, "--out", str(folder)]
    dying = "pretraining/checkpoint/step-000015"
    killed = python("-m", "tests.training.dying", dying, *command)
    assert killed.returncode == -signal.SIGKILL
    assert RunFolder.open(folder / "pretraining").status == "interrupted"
    assert not (folder / "training").exists()

    resumed = python("-m", *command)
    assert resumed.returncode == 0, resumed.stderr
    (step,) = re.findall(rf"resuming after step (\d+) of {STEPS}", resumed.stderr)
    assert int(step) == 14
    assert (folder / "labels.csv").read_bytes() == (whole / "labels.csv").read_bytes()
    assert weights(folder) == weights(whole)
    assert result(folder)["metrics"] == result(whole)["metrics"]
    assert pictures(folder) == FIGURES
    assert not list(folder.rglob("*.tmp"))


# In a process that can unpickle nothing. The model of a table takes the rows of the file.
ESTIMATORS = """
import csv, pickle, sys, numpy as np, torch
from drpm.clustering import DRPMClustering, LatentGMM, VaDE, load_clustering
def refuse(*arguments, **options):
    raise AssertionError("something was unpickled")
pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
X = np.loadtxt(sys.argv[1] + "/table.csv", delimiter=",", skiprows=1)
def read_labels(method):
    with open(f"{sys.argv[1]}/{method}/labels.csv", newline="") as file:
        return [int(row["cluster"]) for row in csv.DictReader(file)]
for method, kind in {"drpm-vc": DRPMClustering, "vade": VaDE, "latent-gmm": LatentGMM}.items():
    model = kind.load(f"{sys.argv[1]}/{method}/model")
    assert list(model.feature_names_in_) == ["height", "depth", "share"]
    del model.feature_names_in_
    assert model.predict(X).tolist() == model.labels_.tolist() == read_labels(method), method
    new, _ = model.sample(100)
    assert (np.abs(new.mean(0) - X.mean(0)) < 3 * X.std(0)).all(), method
    assert np.isfinite(model.score(X))
for method in ("gmm", "contrastive-head"):
    model = load_clustering(f"{sys.argv[1]}/{method}/model")
    assert model.predict(model.to_rows(torch.tensor(X))).tolist() == read_labels(method), method
"""


@pytest.mark.usefixtures("blank_pictures")
def test_the_models_of_a_table(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv")
    for method in ("drpm-vc", "vade", "latent-gmm", "gmm", "contrastive-head"):
        command = [tmp_path / "table.csv", *SMALL, "--clusters=3", f"--method={method}"]
        cluster(*command, "--out", tmp_path / method)
        found = labels(tmp_path / method)
        assert len(found) == 500
        # So short a training need not fill all clusters.
        assert {row["cluster"] for row in found} <= {"0", "1", "2"}
    done = python("-c", ESTIMATORS, tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "vade" / "index.html").read_text(encoding="utf-8")
    assert '<th scope="col">VaDE</th>' in page
    folder = tmp_path / "drpm-vc"
    assert pictures(folder) == FIGURES - {"partition", "confusion"}
    assert set(result(folder)["metrics"]) == {"lower_bound", "neighbor_agreement"}
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["column_names"].tolist() == ["height", "depth", "share"]
        assert arrays["sizes"].sum() == 500
        # In the units of the file, not standardised. The margin is wide, as untrained decoders
        # return about the mean: off by at most 0.19 deviations, here and above, in seven streams.
        samples = arrays["samples"].reshape(-1, 3)
        assert (np.abs(samples.mean(0) - table.mean(0)) < 3 * table.std(0)).all()


@pytest.mark.usefixtures("blank_pictures")
def test_a_table_with_labels(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", ["cat", "dog", "<i>cow"])
    folder = tmp_path / "run"
    # A seed that is too large for NumPy.
    shown = cluster(tmp_path / "table.csv", *SMALL, "--seeds=5000000000", "--out", folder)
    assert shown.stdout.startswith("Seed\tACC\tNMI\tARI\n5000000000\t")
    assert pictures(folder) == FIGURES - {"partition"}
    with np.load(folder / "arrays.npz") as arrays:
        # By default as many clusters as classes.
        assert arrays["confusion"].shape == (3, 3)
        assert arrays["label_names"].tolist() == ["<i>cow", "cat", "dog"]


@pytest.mark.usefixtures("blank_pictures")
def test_several_seeds_as_json(tmp_path: Path) -> None:
    shown = cluster("digits", *SMALL, "--seeds=0,1", "--json", "--out", tmp_path)
    found = json.loads(shown.stdout)
    assert [each["seed"] for each in found] == [0, 1]
    assert [Path(each["folder"]).name for each in found] == ["seed-0", "seed-1"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["seed-0", "seed-1", "summary.json"]
    for each in found:
        folder = Path(each["folder"])
        assert Path(each["page"]) == folder / "index.html"
        assert each["metrics"] == result(folder)["metrics"]
    assert labels(tmp_path / "seed-0") != labels(tmp_path / "seed-1")
    # One seed is one object, in the folder itself.
    seed = tmp_path / "seed-1"
    alone = json.loads(cluster("digits", *SMALL, "--seeds=1", "--json", "--out", seed).stdout)
    assert alone == found[1]


@pytest.mark.usefixtures("blank_pictures")
def test_the_settings_of_a_run_begin_another(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    cluster("digits", *SMALL, "--method=gmm", "--clusters=4", "--out", first)
    # All of them, the number of clusters too, where a preset's would give way to the classes.
    cluster("digits", "--device=cpu", "--preset", first / "config.toml", "--out", second)
    assert (first / "config.toml").read_text() == (second / "config.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text('method = "gmm"\nclusters = 3\n')
    third = tmp_path / "third"
    cluster("digits", "--device=cpu", "--preset", own, "--set=beta=2", "--out", third)
    text = (third / "config.toml").read_text()
    assert 'method = "gmm"\nclusters = 3\n' in text
    assert "beta = 2.0\n" in text
    run = ["--preset", str(first / "config.toml"), "--out", str(tmp_path / "fifth")]
    refused = refusal("factors", *run)
    assert "config.toml is from a run of drpm cluster, not of drpm factors." in refused


@pytest.mark.usefixtures("blank_pictures")
def test_comparing(tmp_path: Path) -> None:
    command = ["digits", *SMALL, "--set=mixture.restarts=1", "--method=gmm", "--compare"]
    shown = cluster(*command, "--out", tmp_path)
    everyone = {"DRPM-VC", "VaDE", "Latent GMM", "GMM", "Contrastive head", "k-means"}
    found = result(tmp_path)
    assert set(found["comparison"]) == everyone
    assert everyone < {line.split("\t")[0] for line in shown.stdout.splitlines()}
    assert next(iter(found["comparison"])) == "GMM"
    assert found["comparison"]["GMM"].items() <= found["metrics"].items()
    assert found["comparison"]["k-means"]["accuracy"] > 0.6  # at 20 seeds at least 0.78
    # All of them start from the same pretraining.
    starts = {path.read_bytes() for path in tmp_path.rglob("pretraining/result.json")}
    assert len(starts) == 1
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert all(name in page for name in everyone)


def test_a_network_that_exceeds_the_memory(tmp_path: Path) -> None:
    # More than there are addresses for, which no system allocates.
    wide = f"--set=network.encoder={10**16}"
    refused = cluster("digits", *SMALL, wide, "--out", tmp_path / "run", code=1)
    assert "error: Out of memory" in refused.stderr


@pytest.mark.usefixtures("blank_pictures")
def test_two_processes_share_a_run(tmp_path: Path) -> None:
    """The command starts them itself; the first one writes and prints."""
    settings = ["digits", *SMALL, "--set=pretraining.kind=reconstruction"]
    done = python("-m", "drpm", "cluster", *settings, "--devices=2", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Seed\t") == 1
    # On GPUs there is no warning. Nothing comes before it, such as a greeting of Lightning's.
    assert done.stderr.startswith("warning: 2 processes share the CPU")
    assert {"accuracy", "ari", "nmi"} < set(result(tmp_path / "run")["metrics"])
    # Each has its own batches, so an epoch has half as many whole steps.
    assert RunFolder.open(tmp_path / "run" / "training").metrics()[-1]["step"] == 4
