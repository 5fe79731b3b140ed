"""The folders of runs: begun, gone on with, refused, overwritten, and killed in between."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from drpm.training.devices import Devices
from drpm.training.errors import InUse, RunError
from drpm.training.runs import RunFolder
from drpm.training.stages import hold_runs, open_run, open_stage

MADE = ("stage", "table.csv")


def begun(folder: Path) -> Path:
    """A finished run with a finished stage and a table."""
    run = open_run(folder, "number = 1\n")
    stage = open_run(folder / "stage", "number = 1\n")
    stage.finish({})
    (folder / "table.csv").write_text("a,b\n")
    run.finish({})
    return folder


def test_one_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    assert open_run(folder, "number = 1\n").status == "finished"
    with pytest.raises(RunError, match="number was 1 and is now 2"):
        open_run(folder, "number = 2\n")


def test_overwritten(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    run = open_run(folder, "number = 2\n", overwrite=True, made=MADE)
    assert run.status == "new"
    assert run.config_text() == "number = 2\n"
    assert not any((folder / name).exists() for name in MADE)


def test_killed_while_a_stage_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path / "run")

    def killed(path: Path, *rest: Any) -> None:
        # The model is gone, the result is not.
        (path / "config.toml").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            open_run(folder, "number = 2\n", overwrite=True, made=MADE)
    assert not (folder / "stage").exists()
    assert RunFolder(folder).status == "new"
    open_run(folder, "number = 2\n", overwrite=True, made=MADE)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "config.toml"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    shutil.rmtree(folder / "stage")
    (folder / "stage").symlink_to(elsewhere)
    open_run(folder, "number = 2\n", overwrite=True, made=MADE)
    assert (elsewhere / "precious").exists()
    assert not (folder / "stage").exists()


def test_held_runs(tmp_path: Path) -> None:
    """Nobody else writes them, and their clocks go from there on."""
    run, stage = (RunFolder.create(tmp_path / name, "x = 1\n") for name in ("run", "stage"))
    (stage.path / "metrics.jsonl").write_text('{"step": 1, "wall_time": 100.0}\n')
    with hold_runs([run]):
        with pytest.raises(InUse), RunFolder(run.path).lock():
            pass
        run.take_metrics([stage.path])
        # The time of a stage that was done before, and not twice.
        assert 100 <= run.wall_time < 150


OTHER_DATA = "the data are others than those it was begun with"


def stage_of(folder: Path, fingerprint: str, number: int = 1) -> RunFolder:
    text = f"number = {number}\n"
    return open_stage(folder, "stage", text, fingerprint=lambda: fingerprint, devices=Devices())


def test_a_stage_with_other_data_is_refused(tmp_path: Path) -> None:
    run = stage_of(tmp_path, "aa")
    assert run.path == tmp_path / "stage"
    assert stage_of(tmp_path, "aa").config_text() == run.config_text()
    with pytest.raises(RunError, match=OTHER_DATA):
        stage_of(tmp_path, "bb")
    # What a person has changed comes first: it may be why the data are others.
    with pytest.raises(RunError, match="number was 1 and is now 2"):
        stage_of(tmp_path, "bb", number=2)


def test_a_stage_that_knows_no_data_is_gone_on_with(tmp_path: Path) -> None:
    """Those of earlier versions, and those of a job, which knows its data itself."""
    text = open_run(tmp_path / "old" / "stage", "number = 1\n").config_text()
    assert stage_of(tmp_path / "old", "aa").config_text() == text
    with pytest.raises(RunError, match="number was 1 and is now 2"):
        stage_of(tmp_path / "old", "aa", number=2)
    open_run(tmp_path / "job", "data = 'mine'\n")
    assert stage_of(tmp_path / "job", "aa").config_text() == "number = 1\n"
    assert stage_of(tmp_path / "job", "bb").config_text() == "number = 1\n"


def test_a_job_with_other_data_is_refused(tmp_path: Path) -> None:
    job = "data = 'mine'\nfingerprint = 'aa'\n[settings]\nnumber = 1\n"
    open_run(tmp_path / "job", job)
    with pytest.raises(RunError, match="what mine holds is not what it was begun with"):
        open_run(tmp_path / "job", job.replace("aa", "bb"))
    with pytest.raises(RunError, match=r"settings\.number was 1 and is now 2"):
        open_run(tmp_path / "job", job.replace("aa", "bb").replace("1", "2"))
