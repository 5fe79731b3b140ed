"""Clustering runs and studies: what they write, refuse, share and resume."""

import io
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.clustering import experiment
from drpm.clustering.config import (
    AutoencoderConfig,
    ClusteringConfig,
    ClusteringJob,
    MixtureConfig,
    PretrainingConfig,
)
from drpm.clustering.experiment import Clustering, figure_data
from drpm.clustering.fitted import FittedClustering, load_clustering
from drpm.clustering.mixtures import Mixture
from drpm.data.own import table
from drpm.data.types import Dataset, Split
from drpm.experiments import run_jobs, run_study
from drpm.training import loop
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder

pytestmark = pytest.mark.usefixtures("blank_pictures")

TRAINING = TrainingConfig(epochs=1, batch_size=16, device="cpu")
SMALL = ClusteringConfig(
    clusters=2,
    partitions=2,
    network=AutoencoderConfig(latent=2, encoder=(4,), decoder=(4,)),
    pretraining=PretrainingConfig(training=TRAINING),
    mixture=MixtureConfig(restarts=1),
    training=TRAINING,
)
JOB = ClusteringJob("rows.csv", clustering=SMALL)


def rows_of(count: int = 40) -> Dataset:
    """Two groups of rows, far from mean 0 and deviation 1."""
    groups = np.arange(count) % 2
    noise = np.random.default_rng(0).normal(size=(count, 2))
    columns = {
        "weight": 1000 + 100 * groups + noise[:, 0],
        "height": -0.5 + 0.1 * groups + 0.001 * noise[:, 1],
    }
    return table("rows.csv", columns)


def run(folder: Path, job: ClusteringJob, data: Dataset) -> None:
    run_jobs(Clustering(), [job], data, [folder], devices=Devices(), command=["drpm"])


def test_runs_of_a_stack_name_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a GPU trains stacks; here their runs are trained one by one on the CPU."""
    train, on_cpu = Clustering.train, Devices()

    def one_by_one(self: Any, jobs: Any, data: Any, folders: Any, devices: Any, show: Any) -> Any:
        assert (devices.device.type, len(jobs)) == ("cuda", 3)
        pairs = zip(jobs, folders, strict=True)
        return [train(self, [job], data, [folder], on_cpu, show)[0] for job, folder in pairs]

    monkeypatch.setattr(Clustering, "train", one_by_one)
    jobs, folders = [JOB.with_seed(seed) for seed in (3, 5, 7)], [tmp_path / x for x in "abc"]
    card, command = Devices("cuda:0"), ["drpm", "cluster", "rows.csv"]
    results = run_jobs(Clustering(), jobs, rows_of(), folders, devices=card, command=command)
    assert [result["stacked"] for result in results] == [[3, 5, 7]] * 3
    for folder in folders:
        assert "--seeds 3,5,7" in (folder / "index.html").read_text(encoding="utf-8")


VIEWS = {"pretraining": replace(SMALL.pretraining, views="mnist")}


@pytest.mark.parametrize(
    ("changes", "compare", "complaint"),
    [
        (VIEWS | {"method": "gmm"}, False, None),  # not pretrained
        ({"likelihood": "bernoulli", "method": "gmm"}, False, None),
        ({"likelihood": "bernoulli", "method": "gmm"}, True, r"^rows\.csv must lie in \[0, 1\]"),
    ],
)
def test_settings_that_do_not_fit_the_data(
    changes: dict[str, Any], compare: bool, complaint: str | None
) -> None:
    job = replace(JOB, compare=compare).with_config(**changes)
    with nullcontext() if complaint is None else pytest.raises(ConfigError, match=complaint):
        Clustering().check(job, rows_of())


@pytest.mark.parametrize("method", ["drpm-vc", "gmm"])
def test_data_of_a_bernoulli_is_not_standardised(tmp_path: Path, method: str) -> None:
    raw = np.random.default_rng(0).beta(0.3, 0.3, (40, 9))
    raw[:2] = [[0] * 9, [1] * 9]
    np.save(f"{tmp_path}.npy", raw)
    job = replace(JOB, data=f"{tmp_path}.npy")
    job = job.with_config(likelihood="bernoulli", method=method)
    data = Clustering().load(job, torch.device("cpu"))
    Clustering().check(job, data)
    run(tmp_path, job, data)
    model = load_clustering(tmp_path / "model")
    rows = model.to_rows(torch.tensor(raw))
    if method == "gmm":
        torch.testing.assert_close(rows, data.train.inputs)
    else:
        np.testing.assert_allclose(rows, raw, atol=1e-6)
        with np.load(tmp_path / "arrays.npz") as arrays:
            assert ((arrays["samples"] >= 0) & (arrays["samples"] <= 1)).all()


def figures_of(means: torch.Tensor, data: Dataset) -> dict[str, Any]:
    """The figure data of a mixture of the rows, whose clusters have equal weights."""
    weights = torch.zeros(len(means)).log_softmax(-1)
    mixture = Mixture(weights, means, torch.full_like(means, 1e-4))
    config = ClusteringConfig(method="gmm", clusters=len(means))
    fitted = FittedClustering(config, data.input_shape, mixture)
    labels, predicted = (fitted.predict(x.inputs.flatten(1)) for x in (data.train, data.test))
    content = figure_data(fitted, data, 0, labels, predicted)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def test_figures_of_images() -> None:
    images = torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    split = Split(images, {"label": torch.arange(60) % 20})
    data = Dataset("images", split, split, {"label": tuple(map(str, range(20)))})
    means = 0.4 + 0.2 * images[:20].flatten(1)
    found = figures_of(means, data)
    assert found["samples"].shape == (20, 32, 28, 28)
    # In the unit interval they are bytes.
    assert {found[name].dtype for name in ("samples", "partition_points")} == {np.dtype(np.uint8)}
    expected = (means * 255).reshape(20, 28, 28).numpy()
    # Of 32 samples with a standard deviation of a hundredth.
    assert np.abs(found["samples"].mean(1) - expected).max() < 5
    assert found["confusion"].sum() == 60
    assert found["latent"].shape == (60, 2)
    np.testing.assert_array_equal(found["examples"], (images * 255).round().squeeze(1))
    assert figures_of(means + 9, data)["samples"].dtype == np.float32


def test_figures_of_wide_tables() -> None:
    """Two groups of rows that differ in columns 7 and 50 of 60."""
    means = torch.zeros(2, 60)
    means[0, 7] = means[1, 50] = 30
    inputs = means.repeat(20, 1) + torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    inputs[:, 3] = 0.0  # a constant column distinguishes nothing
    split = Split(inputs)
    found = figures_of(means, Dataset("rows", split, split))
    assert found["samples"].shape == (2, 100, 40)
    assert found["partition_points"].shape == (128, 40)
    assert found["num_columns"] == 60
    # Columns are counted from one.
    names = found["column_names"].tolist()
    assert {"column 8", "column 51"} < set(names)
    assert "column 4" not in names
    column = names.index("column 8")
    assert np.abs(found["samples"][0, :, column] - 30).max() < 1
    np.testing.assert_allclose(found["examples"][:, column], inputs[:, 7], rtol=1e-5)
    groups = [inputs[::2, 7].mean(), inputs[1::2, 7].mean()]
    np.testing.assert_allclose(found["column_means"][:, column], groups, rtol=1e-4, atol=1e-5)
    deviation = inputs[:, 7].std(correction=0)
    np.testing.assert_allclose(found["column_deviations"][column], deviation, rtol=1e-4)


def test_large_images_are_thumbnails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "THUMBNAILS", 3 * 3 * 32 * 16)
    images = torch.ones(5, 3, 64, 16)
    images[:, :, :2] = 0.0  # one row of a thumbnail
    split = Split(images)
    found = figures_of(images[:2].flatten(1), Dataset("images", split, split))
    assert found["examples"].shape == (3, 3, 32, 16)
    assert found["latent"].shape == (5, 2)
    assert (found["examples"][:, :, 0] == 0).all()
    assert (found["examples"][:, :, 1:] == 255).all()


SETTINGS = [
    "clusters=3",
    "partitions=2",
    "network.latent=2",
    "network.encoder=[6]",
    "network.decoder=[6]",
    "mixture.restarts=1",
    "pretraining.views=digits",
    "pretraining.training.epochs=1",
    "training.epochs=1",
]


def study(folder: Path, variant: str = "", **changes: Any) -> dict[str, Any]:
    """A study that shares its pretraining with those beside it."""
    arguments: dict[str, Any] = {"preset": f"paper-cluster-mnist{variant}", "seeds": [0, 3]}
    arguments |= {"settings": SETTINGS, "options": {"data": "digits"}, "share": True}
    run_study(folder / f"study{variant}", "cluster", **{**arguments, "device": "cpu", **changes})
    return RunFolder.open(folder / f"study{variant}").result()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that are really trained."""
    found: list[str] = []
    train = loop.train

    def listen(program: Any, runs: Any, **options: Any) -> Any:
        found.append(runs[0].path.name)
        return train(program, runs, **options)

    monkeypatch.setattr(loop, "train", listen)
    return found


def models(folder: Path) -> Mapping[str, bytes]:
    """The saved models and labels of every run."""
    return {
        f"{run.relative_to(folder)}/{kind}": path.read_bytes()
        for run in folder.glob("seed-*")
        for kind in ("model", "labels")
        for path in (*run.glob(f"{kind}/*.safetensors"), *run.glob(f"{kind}.csv"))
    }


def test_a_study_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    evaluate = Clustering.evaluate

    def interrupt(self: Clustering, job: ClusteringJob, *given: Any) -> Any:
        if job.seed == 3 and job.clustering.method == "vade":
            raise KeyboardInterrupt
        return evaluate(self, job, *given)

    study(tmp_path / "shared")
    with monkeypatch.context() as patch:
        patch.setattr(Clustering, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path / "shared", "-vade")
    # The second study has copied the pretraining of the first.
    assert trained == ["pretraining", "training"] * 2 + ["training"] * 2
    first = tmp_path / "shared" / "study-vade" / "seed-0"
    # As a GPU records it, which trains both seeds together.
    together = {**RunFolder.open(first).result(), "stacked": [0, 3]}
    before = json.dumps(together).encode()
    (first / "result.json").write_bytes(before)
    result = study(tmp_path / "shared", "-vade")
    assert len(trained) == 6
    assert (first / "result.json").read_bytes() == before
    resumed = RunFolder.open(first.with_name("seed-3")).result()
    assert resumed["stacked"] == [0, 3]
    assert resumed["command"][:3] == ["drpm", "cluster", "digits"]
    assert resumed["command"][-2:] == ["--device", "cpu"]
    # As without an interruption and a shared pretraining, to the last bit.
    assert study(tmp_path / "alone", "-vade")["metrics"] == result["metrics"]
    found = models(tmp_path / "shared" / "study-vade")
    assert found == models(tmp_path / "alone" / "study-vade")
    assert found["seed-0/model"] != found["seed-3/model"]


def test_pretraining_is_shared_only_where_it_agrees(tmp_path: Path, trained: list[str]) -> None:
    """Two kinds, two files, and two likelihoods of one of them."""
    settings = [*SETTINGS, "pretraining.kind=reconstruction", "pretraining.views=auto"]
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        np.save(tmp_path / f"{name}.npy", random.uniform(size=(30, 4)))

    def cluster(name: str, likelihood: str) -> None:
        study(
            tmp_path,
            f"-{name}-{likelihood}",
            preset="paper-cluster-mnist-latent-gmm",
            seeds=[0],
            settings=[*settings, f"likelihood={likelihood}"],
            options={"data": str(tmp_path / f"{name}.npy")},
        )

    for each in (("one", "bernoulli"), ("two", "bernoulli"), ("one", "gaussian")):
        cluster(*each)
    assert trained == ["pretraining"] * 3
    # The same file with other content is other data.
    np.save(tmp_path / "one.npy", random.uniform(size=(30, 4)))
    with pytest.raises(RunError, match="has different settings"):
        cluster("one", "bernoulli")


def test_a_study_of_other_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has changed"):
        study(tmp_path / "new", config="0123456789abcdef")
    assert not (tmp_path / "new").exists()
