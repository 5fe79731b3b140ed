"""A study: each seed in its folder, one pretraining for several, killed and resumed."""

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
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
from drpm.training import presets, stages
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


def study(folder: Path, variant: str = "gmm", **changes: Any) -> dict[str, Any]:
    """A study in a folder of its own, which shares its pretraining with those beside it."""
    arguments: dict[str, Any] = {"preset": PRESETS.get(variant), "seeds": SEEDS}
    arguments |= {"settings": SETTINGS, "share_pretraining": True, "device": "cpu", **changes}
    run_study(folder / variant, "digits", **arguments)
    return RunFolder.open(folder / variant).result()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies that nothing disturbed."""
    folder = tmp_path_factory.mktemp("study") / "digits"
    for variant in PRESETS:
        study(folder, variant)
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
            # What is trained together is repeated together.
            assert result["command"][-1] == ",".join(map(str, result["stacked"]))
            config = configs.loads(Job, run.config_text())
            assert config.clustering.training.seed == seed
            assert load_clustering(run.model_dir).config == config.clustering
            with np.load(run.path / "arrays.npz") as arrays:
                assert arrays["samples"].shape[0] == 3


def test_options_of_the_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)).round(3)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",")
    data, folder = str(tmp_path / "rows.csv"), tmp_path / "study"
    options = {"header": False}
    run_study(folder, data, PRESETS["gmm"], [0], ["clusters=2"], options, device="cpu")
    run = RunFolder.open(folder / "seed-0")
    # Without the option the first of the 20 rows would be the names of the columns.
    assert run.result()["data"]["examples"] == 20
    assert configs.loads(Job, run.config_text()).options == ("header=false",)
    assert run.result()["command"][5:7] == ["--option", "header=false"]
    # They are part of what the study is.
    assert "[options]\nheader = false\n" in RunFolder.open(folder).config_text()


def test_means_and_deviations_and_times(done: Path) -> None:
    for name in PRESETS:
        result = RunFolder.open(done / name).result()
        runs = [RunFolder.open(done / name / f"seed-{seed}").result() for seed in SEEDS]
        for metric in ("nmi", "accuracy", "lower_bound"):
            values = [run["metrics"][metric] for run in runs]
            assert result["metrics"][metric]["mean"] == pytest.approx(statistics.mean(values))
            # Two values: the sample's deviation is their distance over the root of two.
            distance = abs(values[0] - values[1])
            assert result["metrics"][metric]["deviation"] == pytest.approx(distance / 2**0.5)
        assert result["seeds"] == SEEDS
        assert result["preset"] == PRESETS[name]
        assert "less one" in result["deviation"]
        # They were trained together, so the time is not the sum.
        longest = max(run["wall_time"] for run in runs)
        assert result["wall_time"] == longest


def test_pretraining_counts_in_the_time_of_all_who_have_it(done: Path) -> None:
    for name in ("vade", "contrastive-head"):
        run = RunFolder.open(done / name / "seed-0")
        taken = RunFolder.open(run.path / "pretraining").metrics()[-1]["wall_time"]
        assert run.result()["wall_time"] > taken > 0


def test_seeds_differ_and_are_told_apart(done: Path) -> None:
    found = models(done)
    for name in PRESETS:
        one, two = (found[f"{name}/seed-{seed}/model"] for seed in SEEDS)
        assert one != two


def test_killed_between_seeds_it_goes_on(
    done: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trained: list[tuple[str, int]],
) -> None:
    conclude = jobs._conclude

    def killed(job: Job, data: Any, run: RunFolder, *rest: Any) -> None:
        if run.path.parts[-2:] == ("vade", "seed-3"):
            raise KeyboardInterrupt
        conclude(job, data, run, *rest)

    study(tmp_path, "drpm-vc")
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "_conclude", killed)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path, "vade")
    assert trained == [("pretraining", 2), ("training", 2), ("training", 2)]
    assert RunFolder.open(tmp_path / "vade").status == "new"
    before = (tmp_path / "vade" / "seed-0" / "result.json").read_bytes()
    del trained[:]
    result = study(tmp_path, "vade")
    assert trained == []
    assert (tmp_path / "vade" / "seed-0" / "result.json").read_bytes() == before
    found = models(tmp_path)
    assert found == {name: models(done)[name] for name in found}
    assert result["metrics"] == RunFolder.open(done / "vade").result()["metrics"]
    again = study(tmp_path, "vade")
    assert again["metrics"] == result["metrics"]


def test_a_half_copied_pretraining_is_copied_again(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[str, int]]
) -> None:
    def killed(source: Path, target: Path, **options: Any) -> None:
        target.mkdir()
        (target / "config.toml").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path, "contrastive-head")
    run = tmp_path / "contrastive-head" / "seed-0"
    assert (run / ".pretraining.tmp").is_dir()
    study(tmp_path, "contrastive-head")
    assert trained == [("pretraining", 2)]
    assert not (run / ".pretraining.tmp").exists()
    # What nobody needs any more is not copied.
    assert not (run / "pretraining" / "checkpoint").exists()
    found = models(tmp_path)
    assert found == {name: models(done)[name] for name in found}


def test_pretraining_is_shared_only_where_it_agrees(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    study(tmp_path, "latent-gmm", preset="paper-cluster-mnist-latent-gmm", seeds=[1])
    other = "paper-cluster-mnist-reconstruction-latent-gmm"
    result = study(tmp_path, "reconstruction", preset=other, seeds=[1])
    assert trained == [("pretraining", 1)] * 2
    assert len(list(tmp_path.glob("pretraining-*"))) == 2
    # One seed has no deviation, and was trained alone.
    assert result["metrics"]["nmi"]["deviation"] is None
    run = RunFolder.open(tmp_path / "latent-gmm" / "seed-1")
    assert run.result()["stacked"] == [1]


def test_pretraining_on_other_data_is_another(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    """Two files, and two likelihoods of one of them."""
    settings = [*SETTINGS, "pretraining.kind=reconstruction", "pretraining.views=auto"]
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        np.save(tmp_path / f"{name}.npy", random.uniform(size=(30, 4)))
    for name, likelihood in (("one", "bernoulli"), ("two", "bernoulli"), ("one", "gaussian")):
        run_study(
            tmp_path / "studies" / f"{name}-{likelihood}",
            str(tmp_path / f"{name}.npy"),
            "paper-cluster-mnist-latent-gmm",
            [0],
            [*settings, f"likelihood={likelihood}"],
            share_pretraining=True,
            device="cpu",
        )
    assert trained == [("pretraining", 1)] * 3
    # The same file with other content is other data.
    np.save(tmp_path / "one.npy", random.uniform(size=(30, 4)))
    with pytest.raises(RunError, match="has other settings"):
        run_study(
            tmp_path / "studies" / "one-bernoulli",
            str(tmp_path / "one.npy"),
            "paper-cluster-mnist-latent-gmm",
            [0],
            [*settings, "likelihood=bernoulli"],
            share_pretraining=True,
            device="cpu",
        )


def test_a_preset_that_has_changed_is_another_study(
    done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is the same, so finished runs would pass for those of today."""
    load = presets.load

    def changed(kind: Any, name: str) -> Any:
        config = load(kind, name)
        return replace(config, mixture=replace(config.mixture, floor=0.5))

    monkeypatch.setattr(presets, "load", changed)
    with pytest.raises(RunError, match="has other settings"):
        study(done)


def test_settings_that_are_known_by_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="they have changed since"):
        study(tmp_path, config="0123456789abcdef")


def test_a_copied_pretraining_is_not_made_again(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    study(tmp_path, "contrastive-head", seeds=[0])
    (shared,) = tmp_path.glob("pretraining-*")
    shutil.rmtree(shared)
    for path in ("seed-0/result.json", "result.json"):
        (tmp_path / "contrastive-head" / path).unlink()
    study(tmp_path, "contrastive-head", seeds=[0])
    assert trained == [("pretraining", 1)]


def test_without_sharing_nothing_is_written_beside_the_study(tmp_path: Path) -> None:
    study(tmp_path, "contrastive-head", seeds=[0], share_pretraining=False)
    assert [path.name for path in tmp_path.iterdir()] == ["contrastive-head"]


def test_a_pretraining_that_is_being_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[str, int]]
) -> None:
    study(tmp_path, "contrastive-head", seeds=[0])
    (shared,) = tmp_path.glob("pretraining-*")
    (tmp_path / "contrastive-head" / "seed-0" / "result.json").unlink()
    (tmp_path / "contrastive-head" / "result.json").unlink()
    shutil.rmtree(tmp_path / "contrastive-head" / "seed-0" / "pretraining")
    looks: list[float] = []
    with ExitStack() as held:
        held.enter_context(RunFolder(shared).lock())

        def look_again(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                held.close()

        monkeypatch.setattr(time, "sleep", look_again)
        study(tmp_path, "contrastive-head", seeds=[0])
    assert len(looks) == 3
    assert trained == [("pretraining", 1)]


DYING = """
import os, signal, sys
from pathlib import Path
from drpm.training import stages
from tests.clustering.test_study import study

train = stages.train

def killed(program, runs, **options):
    step = program.step

    def last():
        step()
        os.kill(os.getpid(), signal.SIGKILL)

    program.step = last
    return train(program, runs, **options)

stages.train = killed
study(Path(sys.argv[1]), "contrastive-head")
"""


def test_one_that_was_killed_at_a_shared_pretraining_leaves_it_to_the_next(
    done: Path, tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    dying = [sys.executable, "-c", DYING, str(tmp_path)]
    root = Path(__file__).parents[2]
    assert subprocess.run(dying, cwd=root, timeout=600).returncode == -signal.SIGKILL
    (shared,) = tmp_path.glob("pretraining-*")
    assert not list(shared.glob("*/pretraining/result.json"))
    study(tmp_path, "drpm-vc")
    study(tmp_path, "contrastive-head")
    assert trained == [("pretraining", 2), ("training", 2)]
    found = models(tmp_path)
    assert found == {name: models(done)[name] for name in found}


def test_another_study_is_refused(done: Path) -> None:
    text = (done / "gmm" / "config.toml").read_text()
    with pytest.raises(RunError, match="has other settings"):
        study(done, seeds=[0])
    assert (done / "gmm" / "config.toml").read_text() == text
    assert json.loads((done / "gmm" / "result.json").read_text())["seeds"] == SEEDS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": []}, "seeds must be one or more that differ, but got []."),
        ({"seeds": [1, 1]}, "seeds must be one or more that differ, but got [1, 1]."),
        ({"preset": "paper-cluster"}, "'paper-cluster' is not a preset"),
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
    study(tmp_path)
    path = tmp_path / "gmm" / "seed-3" / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["lower_bound"] = None
    path.write_text(json.dumps(result))
    (tmp_path / "gmm" / "result.json").unlink()
    metrics = study(tmp_path)["metrics"]
    assert metrics["lower_bound"] is None
    assert metrics["nmi"]["mean"] > 0


def test_the_tiny_settings_are_settings() -> None:
    """So that a setting that is renamed is told of here, and not by a puzzling study."""
    configs.override(ClusteringConfig(), SETTINGS)
