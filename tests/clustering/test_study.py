"""A study: each method and seed in its folder, one pretraining for all, killed and resumed."""

import json
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.clustering import job as jobs
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.fitted import load_clustering
from drpm.clustering.job import Job
from drpm.clustering.study import run_study
from drpm.training import config as configs
from drpm.training import stages
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder

SEEDS = [0, 3]
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
PRESETS = {
    name: f"paper-cluster-mnist{end}"
    for name, end in {
        "gmm": "-gmm",
        "drpm-vc": "",
        "vade": "-vade",
        "contrastive-head": "-contrastive-head",
    }.items()
}


def study(folder: Path, **changes: Any) -> dict[str, Any]:
    arguments = {"presets": PRESETS, "seeds": SEEDS, "settings": SETTINGS, **changes}
    run_study(folder, "digits", device="cpu", **arguments)
    return RunFolder.open(folder).result()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nothing disturbed."""
    folder = tmp_path_factory.mktemp("study") / "digits"
    study(folder)
    return folder


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every stage that is really trained, with how many seeds at once."""
    found: list[tuple[str, int]] = []
    train = stages.train

    def listen(program: Any, runs: Any, **options: Any) -> Any:
        found.append((runs[0].path.name, len(runs)))
        return train(program, runs, **options)

    monkeypatch.setattr(stages, "train", listen)
    return found


def models(folder: Path) -> Mapping[str, bytes]:
    """What was learnt, of every run, and what it says of the data."""
    return {
        f"{run.relative_to(folder)}/{kind}": path.read_bytes()
        for run in folder.glob("*/seed-*")
        for kind in ("model", "labels")
        for path in (*run.glob(f"{kind}/*.safetensors"), *run.glob(f"{kind}.csv"))
    }


def test_every_run_is_left_as_a_job_leaves_it(done: Path) -> None:
    expected = {"config.toml", "labels.csv", "model", "arrays.npz", "result.json"}
    for name in PRESETS:
        for seed in SEEDS:
            run = RunFolder.open(done / name / f"seed-{seed}")
            files = {path.name for path in run.path.iterdir()}
            assert expected <= files
            assert ("metrics.jsonl" in files) == (name != "gmm")
            result = run.result()
            assert result["seed"] == seed
            assert result["stacked"] == ([seed] if name == "gmm" else SEEDS)
            assert set(result["metrics"]) == {"nmi", "ari", "accuracy", "lower_bound"}
            assert result["command"][-2:] == ["--seeds", str(seed)]
            config = configs.loads(Job, run.config_text())
            assert config.clustering.training.seed == seed
            assert load_clustering(run.model_dir).config == config.clustering
            with np.load(run.path / "arrays.npz") as arrays:
                assert arrays["samples"].shape[0] == 3


def test_options_of_the_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)).round(3)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",")
    data, folder = str(tmp_path / "rows.csv"), tmp_path / "study"
    presets, few = {"gmm": PRESETS["gmm"]}, ["clusters=2"]
    run_study(folder, data, presets, [0], few, "cpu", {"header": False})
    run = RunFolder.open(folder / "gmm" / "seed-0")
    # Without the option the first of the 20 rows would be the names of the columns.
    assert run.result()["data"]["examples"] == 20
    assert configs.loads(Job, run.config_text()).options == ("header=false",)
    assert run.result()["command"][5:7] == ["--option", "header=false"]
    # They are part of what the study is.
    assert "[options]\nheader = false\n" in RunFolder.open(folder).config_text()


def test_means_and_deviations_and_times(done: Path) -> None:
    result = RunFolder.open(done).result()
    assert list(result["metrics"]) == list(PRESETS)
    for name, metrics in result["metrics"].items():
        runs = [RunFolder.open(done / name / f"seed-{seed}").result() for seed in SEEDS]
        for metric in ("nmi", "accuracy", "lower_bound"):
            values = [run["metrics"][metric] for run in runs]
            assert metrics[metric]["mean"] == pytest.approx(statistics.mean(values))
            # Two values: the sample's deviation is their distance over the root of two.
            distance = abs(values[0] - values[1])
            assert metrics[metric]["deviation"] == pytest.approx(distance / 2**0.5)
    assert result["seeds"] == SEEDS
    assert "less one" in result["deviation"]
    assert set(result["seconds"]["gmm"]) == {"wall_time"}
    assert set(result["seconds"]["vade"]) == {"pretraining", "training", "wall_time"}
    assert result["pretraining_by"] == {
        "gmm": None,
        "drpm-vc": "drpm-vc",
        "vade": "drpm-vc",
        "contrastive-head": "drpm-vc",
    }
    # Pretraining counts once in the time of the study.
    seconds = result["seconds"]
    total = sum(each["wall_time"] for each in seconds.values())
    taken_over = seconds["vade"]["pretraining"] + seconds["contrastive-head"]["pretraining"]
    lines = RunFolder.open(done).metrics()
    assert lines[-1]["wall_time"] == pytest.approx(total - taken_over, abs=0.01)
    assert result["wall_time"] >= lines[-1]["wall_time"] - 0.01


def test_seeds_differ_and_are_told_apart(done: Path) -> None:
    found = models(done)
    for name in PRESETS:
        one, two = (found[f"{name}/seed-{seed}/model"] for seed in SEEDS)
        assert one != two


def test_killed_between_variants_it_goes_on(
    done: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trained: list[tuple[str, int]],
) -> None:
    conclude = jobs._conclude

    def killed(job: Job, data: Any, run: RunFolder, *rest: Any) -> None:
        # After all of the second variant, and one seed of the third.
        if run.path.parts[-2:] == ("vade", "seed-3"):
            raise KeyboardInterrupt
        conclude(job, data, run, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "_conclude", killed)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path)
    assert trained == [("pretraining", 2), ("training", 2), ("training", 2)]
    assert RunFolder.open(tmp_path).status == "cut off"
    before = (tmp_path / "drpm-vc" / "seed-0" / "result.json").read_bytes()
    del trained[:]
    result = study(tmp_path)
    assert trained == []
    assert (tmp_path / "drpm-vc" / "seed-0" / "result.json").read_bytes() == before
    assert models(tmp_path) == models(done)
    assert result["metrics"] == RunFolder.open(done).result()["metrics"]
    again = study(tmp_path)
    assert again["metrics"] == result["metrics"]


def test_a_half_copied_pretraining_is_copied_again(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[str, int]]
) -> None:
    def killed(source: Path, target: Path, **options: Any) -> None:
        target.mkdir()
        (target / "config.toml").touch()
        raise KeyboardInterrupt

    two = {name: PRESETS[name] for name in ("drpm-vc", "contrastive-head")}
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path, presets=two)
    run = tmp_path / "contrastive-head" / "seed-0"
    assert (run / ".pretraining.tmp").is_dir()
    study(tmp_path, presets=two)
    assert trained == [("pretraining", 2), ("training", 2)]
    assert not (run / ".pretraining.tmp").exists()
    # What nobody needs any more is not copied.
    assert not (run / "pretraining" / "checkpoint").exists()
    found = models(tmp_path)
    assert found == {name: models(done)[name] for name in found}


def test_pretraining_is_shared_only_where_it_agrees(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    presets = {
        "latent-gmm": "paper-cluster-mnist-latent-gmm",
        "reconstruction": "paper-cluster-mnist-reconstruction-latent-gmm",
    }
    result = study(tmp_path, presets=presets, seeds=[1])
    assert trained == [("pretraining", 1)] * 2
    assert result["pretraining_by"] == {name: name for name in presets}
    # One seed has no deviation, and was trained alone.
    assert result["metrics"]["latent-gmm"]["nmi"]["deviation"] is None
    run = RunFolder.open(tmp_path / "latent-gmm" / "seed-1")
    assert run.result()["stacked"] == [1]


def test_another_study_is_refused(done: Path) -> None:
    text = (done / "config.toml").read_text()
    with pytest.raises(RunError, match="has other settings; choose another folder"):
        study(done, seeds=[0])
    assert (done / "config.toml").read_text() == text
    assert json.loads((done / "result.json").read_text())["seeds"] == SEEDS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": []}, "seeds must be one or more that differ, but got []."),
        ({"seeds": [1, 1]}, "seeds must be one or more that differ, but got [1, 1]."),
        ({"presets": {}}, "presets must name one variant or more, but got none."),
        ({"presets": {"a": "paper-cluster"}}, "'paper-cluster' is not a preset"),
        ({"settings": ["clusters=5000"]}, "clusters must be at most the number of examples"),
    ],
)
def test_refusals_come_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        study(tmp_path / "new", **changes)
    assert sentence in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_a_metric_that_is_no_number_has_no_mean(tmp_path: Path) -> None:
    """A bound may be infinite, which a result writes as null."""
    presets = {"gmm": PRESETS["gmm"]}
    study(tmp_path, presets=presets)
    path = tmp_path / "gmm" / "seed-3" / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["lower_bound"] = None
    path.write_text(json.dumps(result))
    (tmp_path / "result.json").unlink()
    metrics = study(tmp_path, presets=presets)["metrics"]["gmm"]
    assert metrics["lower_bound"] is None
    assert metrics["nmi"]["mean"] > 0


def test_the_tiny_settings_are_settings() -> None:
    """So that a setting that is renamed is told of here, and not by a puzzling study."""
    configs.override(ClusteringConfig(), SETTINGS)
