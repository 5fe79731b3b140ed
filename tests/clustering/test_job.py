"""A clustering in a folder: its labels, what is drawn of it, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.clustering import job as jobs
from drpm.clustering.config import ClusteringConfig, MixtureConfig, NetworkConfig, PretrainingConfig
from drpm.clustering.drawn import unstandardiser
from drpm.clustering.fitted import load_clustering
from drpm.clustering.job import Job, check_job, do_job, open_job
from drpm.data.tables import table
from drpm.data.types import DataError, Dataset, Split
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder

TRAINING = TrainingConfig(epochs=1, batch_size=16, device="cpu")
SMALL = ClusteringConfig(
    clusters=2,
    partitions=2,
    network=NetworkConfig(latent=2, encoder=(4,), decoder=(4,)),
    pretraining=PretrainingConfig(training=TRAINING),
    mixture=MixtureConfig(restarts=1),
    training=TRAINING,
)
JOB = Job("rows.csv", clustering=SMALL)
MIXTURE = replace(JOB, clustering=replace(SMALL, method="gmm"))


def rows_of(count: int = 40) -> Dataset:
    """Two heaps of rows, far from mean 0 and deviation 1."""
    heaps = np.arange(count) % 2
    noise = np.random.default_rng(0).normal(size=(count, 2))
    columns = {
        "weight": 1000 + 100 * heaps + noise[:, 0],
        "height": -0.5 + 0.1 * heaps + 0.001 * noise[:, 1],
    }
    return table("rows.csv", columns)


class TestFolder:
    def test_the_same_job_goes_on(self, tmp_path: Path) -> None:
        open_job(tmp_path, JOB)
        assert open_job(tmp_path, JOB).status == "new"

    @pytest.mark.parametrize(
        "other",
        [
            replace(JOB, data="others.csv"),
            replace(JOB, options=("header=false",)),
            replace(JOB, compare=True),
            replace(JOB, clustering=replace(SMALL, clusters=3)),
            replace(JOB, clustering=replace(SMALL, training=replace(TRAINING, seed=1))),
        ],
        ids=["data", "options", "compare", "clusters", "seed"],
    )
    def test_another_job_is_refused(self, tmp_path: Path, other: Job) -> None:
        open_job(tmp_path, JOB)
        text = (tmp_path / "config.toml").read_text()
        with pytest.raises(RunError, match=r"has other settings \(.* is now .*\); choose another"):
            open_job(tmp_path, other)
        assert (tmp_path / "config.toml").read_text() == text

    def test_another_job_overwrites(self, tmp_path: Path) -> None:
        do_job(JOB, rows_of(), open_job(tmp_path, JOB))
        run = open_job(tmp_path, MIXTURE, overwrite=True)
        assert run.status == "new"
        assert {path.name for path in tmp_path.iterdir()} == {".lock", "config.toml"}
        assert 'method = "gmm"' in run.config_text()

    def test_overwriting_nothing(self, tmp_path: Path) -> None:
        assert open_job(tmp_path / "new", JOB, overwrite=True).status == "new"

    def test_what_is_no_run_is_not_overwritten(self, tmp_path: Path) -> None:
        for name in ("training", "others"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "thesis.txt").touch()
        with pytest.raises(RunError, match="holds no run"):
            open_job(tmp_path, JOB, overwrite=True)
        assert len(list(tmp_path.rglob("thesis.txt"))) == 2

    def test_cut_off_while_overwriting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        do_job(JOB, rows_of(), open_job(tmp_path, JOB))

        def killed(path: Any) -> None:
            raise KeyboardInterrupt

        other = replace(JOB, clustering=replace(SMALL, clusters=3))
        monkeypatch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            open_job(tmp_path, other, overwrite=True)
        monkeypatch.undo()
        # Neither finished, nor taken for the new one with the stages of the old.
        assert RunFolder.open(tmp_path).status != "finished"
        with pytest.raises(RunError, match="has other settings"):
            open_job(tmp_path, other)

    def test_one_that_is_in_use_is_left_alone(self, tmp_path: Path) -> None:
        run = open_job(tmp_path, JOB)

        def look(stage: str) -> None:
            with pytest.raises(RunError, match="is in use"):
                open_job(tmp_path, MIXTURE, overwrite=True)

        do_job(JOB, rows_of(), run, progress=look)
        assert run.status == "finished"


class TestJob:
    @pytest.mark.parametrize("job", [JOB, MIXTURE], ids=["drpm-vc", "gmm"])
    def test_samples_of_a_table(self, tmp_path: Path, job: Job) -> None:
        data = rows_of()
        run = open_job(tmp_path, job)
        do_job(job, data, run)
        with np.load(tmp_path / "arrays.npz") as arrays:
            for name in ("samples", "partition_points"):
                points = arrays[name].reshape(-1, 2)
                assert np.abs(points[:, 0] - 1050).max() < 500
                assert np.abs(points[:, 1] + 0.45).max() < 0.5
            assert arrays["samples"].shape == (2, 100, 2)

    def test_what_cannot_be_is_refused_before_anything_is_written(self) -> None:
        many = replace(JOB, clustering=replace(SMALL, clusters=41))
        with pytest.raises(ConfigError, match="at most the number of examples, 40, but got 41"):
            check_job(many, rows_of())
        seen = replace(SMALL, pretraining=replace(SMALL.pretraining, views="mnist"))
        with pytest.raises(ConfigError, match=r"^pretraining\.views must be 'noise'"):
            check_job(replace(JOB, clustering=seen), rows_of())
        # Nobody looks at views where there is no pretraining.
        check_job(replace(JOB, clustering=replace(seen, method="gmm")), rows_of())

    @pytest.mark.parametrize("method", ["drpm-vc", "gmm"])
    def test_chances_are_not_standardised(self, tmp_path: Path, method: str) -> None:
        """A Bernoulli's means; a mixture of the rows has none, and keeps them standardised."""
        raw = np.random.default_rng(0).beta(0.3, 0.3, (40, 9))
        raw[:2] = [[0] * 9, [1] * 9]
        data = table("rows.csv", {f"pixel {i}": raw[:, i] for i in range(9)})
        back = unstandardiser(data)(data.train.inputs)
        assert not 0 <= back.min() <= back.max() <= 1  # by rounding, which is no reason to refuse
        changed = {"likelihood": "bernoulli", "method": method}
        job = replace(JOB, clustering=replace(SMALL, **changed))
        check_job(job, data)
        do_job(job, data, open_job(tmp_path, job))
        with np.load(tmp_path / "arrays.npz") as arrays:
            inside = (arrays["samples"] >= 0) & (arrays["samples"] <= 1)
        model = load_clustering(tmp_path / "model")
        rows = model.to_rows(torch.tensor(raw))
        if method == "gmm":
            torch.testing.assert_close(rows, data.train.inputs)
        else:
            assert inside.all()
            np.testing.assert_allclose(rows, raw, atol=1e-6)

    @pytest.mark.parametrize("method", ["drpm-vc", "contrastive-head"])
    def test_a_bernoulli_of_other_numbers(self, method: str) -> None:
        changed = replace(SMALL, likelihood="bernoulli", method=method)
        complaint = (
            r"^rows\.csv must lie in \[0, 1\] where likelihood is 'bernoulli', but got values"
        )
        with pytest.raises(ConfigError, match=complaint + " from -0.50.* to 110.*"):
            check_job(replace(JOB, clustering=changed), rows_of())
        mixture = replace(changed, method="gmm")
        check_job(replace(JOB, clustering=mixture), rows_of())
        with pytest.raises(ConfigError, match=complaint):
            check_job(replace(JOB, clustering=mixture, compare=True), rows_of())

    def test_a_folder_that_changes_under_the_job(self, tmp_path: Path) -> None:
        (tmp_path / "images").mkdir()
        for number in range(3):
            (tmp_path / "images" / f"{number}.png").touch()
        job = replace(JOB, data=str(tmp_path / "images"))
        with pytest.raises(DataError, match="has changed while it was read"):
            do_job(job, rows_of(), open_job(tmp_path / "run", job))

    def test_as_many_clusters_as_rows(self, tmp_path: Path) -> None:
        job = replace(MIXTURE, clustering=replace(MIXTURE.clustering, clusters=3))
        result = do_job(job, rows_of(3), open_job(tmp_path, job))
        assert np.isfinite(result["metrics"]["lower_bound"])

    def test_a_test_part_of_one_row_that_lacks_classes(self, tmp_path: Path) -> None:
        data = rows_of()
        train = Split(data.train.inputs, {"label": torch.arange(40) % 3})
        test = Split(data.train.inputs[:1], {"label": torch.zeros(1, dtype=torch.int64)})
        parts = replace(data, train=train, test=test, classes={"label": ("a", "b", "c")})
        do_job(JOB, parts, open_job(tmp_path, JOB))
        with np.load(tmp_path / "arrays.npz") as arrays:
            assert arrays["latent"].shape == (1, 2)
            assert arrays["confusion"].shape == (3, 2)
            assert arrays["confusion"].sum() == 1
            assert arrays["label_names"].tolist() == ["a", "b", "c"]
        lines = (tmp_path / "labels.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines[1:]] == ["train"] * 40 + ["test"]

    def test_the_time_before_a_cut_counts(self, tmp_path: Path) -> None:
        run = open_job(tmp_path, JOB)
        do_job(JOB, rows_of(), run)
        # As if a first process had taken an hour, and been killed before it was judged.
        for stage in ("pretraining", "training"):
            path = tmp_path / stage / "metrics.jsonl"
            lines = path.read_text().splitlines()
            records = [{**json.loads(line), "wall_time": 1800} for line in lines]
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        run.result_path.unlink()
        result = do_job(JOB, rows_of(), open_job(tmp_path, JOB))
        assert 3600 <= result["wall_time"] < 3700
        found = [(record["stage"], record["wall_time"]) for record in run.metrics()]
        assert found == [("pretraining", 1800), ("training", 3600)]

    def test_a_copy_that_was_cut_off_is_made_again(self, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "deep" / "target"
        source.mkdir()
        (source / "file").write_text("whole")
        half = target.with_name(".target.tmp")
        half.mkdir(parents=True)
        (half / "other").touch()
        jobs.copy_whole(source, target)
        assert [path.name for path in target.iterdir()] == ["file"]
        assert not half.exists()
        (source / "file").write_text("changed")
        jobs.copy_whole(source, target)
        assert (target / "file").read_text() == "whole"
