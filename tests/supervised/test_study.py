"""Studies and the command line: all seeds, and again after a kill."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.cli.completion import SWEEPS
from drpm.supervised import job, sweeps
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.fitted import load_partitioner
from drpm.supervised.study import run_study
from drpm.training import presets
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder
from drpm.training.studies import digest_settings
from tests.training.interrupting import cut_off

SETTINGS = [
    *("hidden=16", "training.epochs=1", "training.batch_size=64", "size_weights=0.01,0.1"),
    "training.device=cpu",
]


def supervised(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["supervised", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def options(settings: list[str]) -> list[str]:
    return ["--device=cpu", *(f"--set={setting}" for setting in settings)]


def do(folder: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "data": "digits",
        "preset": "fast-supervised",
        "seeds": [0, 1],
        "settings": SETTINGS,
        "device": "cpu",
    }
    run_study(folder, **{**arguments, **changes})


def test_killed_before_its_end_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(monkeypatch, job, tmp_path / "seed-1", lambda: do(tmp_path))
    before = (tmp_path / "seed-0" / "result.json").read_bytes()
    do(tmp_path)
    assert (tmp_path / "seed-0" / "result.json").read_bytes() == before
    for seed in (0, 1):
        kept = load_partitioner(tmp_path / f"seed-{seed}" / "model")
        assert kept.config.training.seed == seed
    runs = [RunFolder.open(tmp_path / f"seed-{seed}").result() for seed in (0, 1)]
    result = json.loads((tmp_path / "result.json").read_text())
    mean = sum(run["metrics"]["f1"] for run in runs) / 2
    assert result["metrics"]["f1"]["mean"] == pytest.approx(mean)
    for run in runs:
        assert run["stacked"] == [0, 1]
        assert run["command"][-2:] == ["--seeds", "0,1"]
        chosen = run["selection"]
        assert chosen == runs[0]["selection"]
        assert chosen["held_out"] == 144
        assert {(row["size_weight"], row["seed"]) for row in chosen["scores"]} == {
            (weight, seed) for weight in (0.01, 0.1) for seed in (0, 1)
        }
        totals = {
            weight: sum(row["f1"] for row in chosen["scores"] if row["size_weight"] == weight)
            for weight in (0.01, 0.1)
        }
        assert chosen["size_weight"] == max(totals, key=lambda weight: totals[weight])
    with pytest.raises(RunError, match="other settings"):
        do(tmp_path, settings=[*SETTINGS, "scale=1.0"])


def test_the_command_does_the_same(tmp_path: Path) -> None:
    """Its settings, as the command line reads them, are those of the run."""
    do(tmp_path, seeds=[1])
    run = RunFolder.open(tmp_path / "seed-1")
    supervised(*run.result()["command"][2:], "--out", tmp_path / "again")
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()
    assert run.result()["command"][-2:] == ["--seeds", "1"]
    # Alone, it is the same to the last bit.
    assert again.result()["metrics"] == run.result()["metrics"]


def test_digits_are_learnt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = supervised("digits", *options([]), "--out", folder)
    # One weight of sizes, so there is none that was chosen.
    header, row, page, labels = shown.stdout.splitlines()
    assert header == "Seed\tF1\tACC\tError of sizes"
    assert float(row.split("\t")[1]) > 0.6  # 0.82 to 0.95 at 12 seeds, and 0.1 by chance
    assert page == f"Page: {folder / 'index.html'}"
    assert labels == f"Labels: {folder / 'labels.csv'}"
    # Nothing to be warned of, and no target to choose.
    assert not shown.stderr.replace("Training\n", "").startswith(("warning", "Learning"))
    result = json.loads((folder / "result.json").read_text())
    assert result["data"]["batch size"] == 64
    assert result["data"]["test batches"] == 6
    assert result["data"]["test batch size"] == "59 to 60"
    assert "batch of 60 images" in (folder / "index.html").read_text()
    assert result["selection"] == {"size_weight": 0.01, "held_out": 0, "scores": []}
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["grid__subsets"].shape[0] == 10
        assert arrays["grid__subsets"].shape[2:] == (8, 8)
        assert np.trace(arrays["matrix__classes"]) > 9
        assert arrays["matrix__sizes-error"].shape == (6, 10)
        # Both sizes are those of whole batches.
        assert np.abs(arrays["matrix__sizes-error"].sum(1)).max() == 0
    assert {path.stem for path in (folder / "figures").glob("*.png")} == {
        *("subsets", "classes", "sizes-error", "curves")
    }
    assert load_partitioner(folder / "model").shape == (1, 8, 8)
    # Done already: the same again, and other settings are refused.
    assert supervised("digits", *options([]), "--out", folder).stdout == shown.stdout
    refused = supervised("digits", *options(SETTINGS), "--out", folder, code=1)
    assert "other settings" in refused.stderr


def test_without_any_epoch(tmp_path: Path) -> None:
    result = supervised("digits", *options(["training.epochs=0"]), "--json", "--out", tmp_path)
    assert 0 <= json.loads(result.stdout)["metrics"]["f1"] < 0.5


def test_own_table(tmp_path: Path) -> None:
    """Its model takes rows as the file has them, and says of them what the run has said."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    rows = 4 * np.eye(3)[labels] + 0.3 * generator.standard_normal((200, 3))
    rows = 20 * rows + [1e3, -70, 1e6]
    pairs = zip(rows, labels, strict=True)
    lines = ["a,b,c,label", *(f"{a},{b},{c},k{y}" for (a, b, c), y in pairs)]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    settings = ["hidden=16", "scale=0.1", "training.epochs=20", "training.batch_size=32"]
    arguments = [tmp_path / "own.csv", *options(settings), "--out", tmp_path / "run", "--json"]
    result = json.loads(supervised(*arguments).stdout)
    # A fifth is the test part.
    assert (result["data"]["examples"], result["data"]["test examples"]) == (160, 40)
    assert result["metrics"]["f1"] > 0.5
    with np.load(tmp_path / "run" / "arrays.npz") as arrays:
        assert "grid__subsets" not in arrays
        assert arrays["matrix_rows__classes"].tolist() == ["k0", "k1", "k2"]
    with (tmp_path / "run" / "labels.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [line["index"] for line in told] == [str(place) for place in range(200)]
    assert [line["class"] for line in told] == [f"k{label}" for label in labels]
    tested = [line for line in told if line["split"] == "test"]
    assert len(tested) == 40
    right = np.mean([line["class"] == line["subset"] for line in tested])
    assert right == pytest.approx(result["metrics"]["accuracy"])
    model = load_partitioner(tmp_path / "run" / "model")
    batches = sorted({(line["split"], line["batch"]) for line in told})
    assert batches == [("test", "0"), *(("train", str(batch)) for batch in range(5))]
    for batch in batches:
        members = [line for line in told if (line["split"], line["batch"]) == batch]
        some = rows[[int(line["index"]) for line in members]]
        found = [f"k{subset}" for subset in model.partition(some).subsets]
        assert found == [line["subset"] for line in members]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.csv"], "nowhere.csv"),
        (["digits", "--preset=fast"], "is not a preset"),
        (["digits", "--seeds=0,0"], "seeds must all differ"),
        (["digits", "--device=gpu"], "device must be 'auto'"),
        (["digits", "--set=scal=1"], "scale"),
        (["digits", "--set=size_weights=-1"], "size_weights must be one or more numbers"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    refused = supervised(*options(SETTINGS), *arguments, "--out", tmp_path / "run", code=1)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not (tmp_path / "run").exists()


def test_data_without_classes(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(20)))
    refused = supervised(tmp_path / "own.csv", "--out", tmp_path / "run", code=1)
    assert "data must have a class for every element" in refused.stderr


def test_one_class(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,label\n" + "".join(f"{i},x\n" for i in range(20)))
    refused = supervised(tmp_path / "own.csv", "--out", tmp_path / "run", code=1)
    assert "data must have two classes or more, but" in refused.stderr


def test_cut_off_and_gone_on_with_alone_it_has_the_choice_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(monkeypatch, job, tmp_path / "seed-1", lambda: do(tmp_path))
    supervised("digits", *options(SETTINGS), "--seeds=1", "--out", tmp_path / "seed-1")
    first, second = (RunFolder.open(tmp_path / f"seed-{seed}").result() for seed in (0, 1))
    assert second["selection"] == first["selection"]
    assert {row["seed"] for row in second["selection"]["scores"]} == {0, 1}


def test_other_seeds_in_the_same_folder(tmp_path: Path) -> None:
    """One that is finished stays, and a new one is trained."""
    small = ["digits", *options(SETTINGS), "--out", tmp_path, "--json"]
    first = json.loads(supervised(*small, "--seeds=0,1").stdout)
    second = json.loads(supervised(*small, "--seeds=0,2").stdout)
    assert second[0] == first[0]
    assert second[1]["seed"] == 2
    assert second[1]["metrics"] != first[1]["metrics"]
    # It chooses for itself.
    assert {row["seed"] for row in second[1]["selection"]["scores"]} == {2}


def test_bad_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds must be one or more that differ"):
        do(tmp_path, seeds=[0, 0])


def test_the_sweep() -> None:
    assert "supervised" in SWEEPS
    runs = sweeps.supervised().runs
    assert [run.folder for run in runs] == ["mnist/drpm", "fashion-mnist/drpm"]
    for run in runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        config = presets.load(SupervisedConfig, run.arguments["preset"])
        assert run.arguments["config"] == digest_settings(config)
        assert len(config.size_weights) > 1
        assert config.prediction_temperature == 0.05  # the page tells one for both
