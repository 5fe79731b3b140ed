"""Run folders: what they hold, who may write them, and what a kill or a full disk leaves."""

import errno
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import drpm
from drpm.training import runs
from drpm.training.checkpoint import save_state
from drpm.training.errors import RunError
from drpm.training.runs import RunFolder, open_run
from tests.training.toys import make_program

CONFIG = '[training]\nseed = 5\nname = "ü"\n'


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return open_run(tmp_path / "runs" / "first", CONFIG)


def test_a_run_is_created_and_opened(run: RunFolder, tmp_path: Path) -> None:
    assert RunFolder.open(str(run.path)).config_text() == CONFIG
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=re.escape(f"The folder {path} contains no run")):
            RunFolder.open(path)


def test_a_run_is_only_overwritten_on_request(run: RunFolder, tmp_path: Path) -> None:
    run.log({"step": 1})
    with pytest.raises(RunError, match=r"different settings .*--overwrite\)"):
        open_run(run.path, "")
    assert run.config_text() == CONFIG
    run.write_atomic("figures/a.png", b"picture")
    save_state(run.checkpoint_dir, make_program().state(), 1)
    run.finish({})
    (run.path / "notes.txt").write_text("mine", encoding="utf-8")
    # Links are not followed.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    for name in ("model", "stage"):
        (run.path / name).symlink_to(tmp_path / "elsewhere")
    again = open_run(run.path, "seed = 1\n", overwrite=True, outputs=["stage"])
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert again.status == "new"
    assert again.config_text() == "seed = 1\n"
    assert {path.name for path in run.path.iterdir()} == {".lock", "config.toml", "notes.txt"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(RunError, match=r"is not empty and contains no run \(it has thesis\.tex\)"):
        open_run(tmp_path, CONFIG, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_an_interrupted_creation_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.123.tmp").write_text("half", encoding="utf-8")
    open_run(tmp_path, CONFIG)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "config.toml"}


def test_other_settings_or_data_are_refused(tmp_path: Path) -> None:
    text = 'data = "own.npz"\nfingerprint = "aa"\n[b]\nc = 2\n'
    open_run(tmp_path, text)
    open_run(tmp_path, text)
    cases = {
        "b.c was 2 and is now 3": text.replace("2", "3").replace("aa", "bb"),
        "b.c was 2 and is now unset": text.replace("c = 2", ""),
        "the data have changed": text.replace("aa", "bb"),
    }
    for difference, other in cases.items():
        with pytest.raises(
            RunError, match=rf"different settings \({difference}\); choose .*overwrite"
        ):
            open_run(tmp_path, other)
    for damaged in (b"\xff\xfe", b"a = ["):
        (tmp_path / "config.toml").write_bytes(damaged)
        with pytest.raises(RunError, match=r"\(config\.toml is damaged\)"):
            open_run(tmp_path, text)


def test_killed_while_a_stage_is_removed(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    open_run(run.path / "stage", "").finish({})
    run.finish({})

    def killed(path: Path, *rest: Any) -> None:
        (path / "config.toml").unlink()  # the model is gone, the result is not
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            open_run(run.path, "seed = 2\n", overwrite=True, outputs=["stage"])
    assert not (run.path / "stage").exists()
    assert run.status == "new"
    open_run(run.path, "seed = 2\n", overwrite=True, outputs=["stage"])
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.toml"]


def test_the_status(run: RunFolder) -> None:
    assert run.status == "new"
    save_state(run.checkpoint_dir, make_program().state(), 1)
    assert run.status == "interrupted"
    run.finish({"accuracy": 0.5})
    assert run.status == "finished"
    (run.path / "result.json").write_text('{"metr', encoding="utf-8")
    assert run.status == "interrupted"


def test_the_result(run: RunFolder) -> None:
    run.finish({"accuracy": 0.5, "worst": math.nan, "table": np.eye(2)}, device=torch.device("cpu"))
    result = run.result()
    assert result["metrics"] == {"accuracy": 0.5, "worst": None, "table": [[1.0, 0.0], [0.0, 1.0]]}
    assert result["seed"] == 5
    assert result["device"] == "cpu"
    assert result["versions"] == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "drpm": drpm.__version__,
        "numpy": np.__version__,
    }
    revision = result["git_revision"]
    assert revision is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", revision)
    run.finish({}, seed=9)
    assert run.result()["seed"] == 9


def test_the_revision_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
        done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    revision = runs.git_revision.__wrapped__
    git("init", "-q")
    (tmp_path / "module.py").write_text("x = 1\n", encoding="utf-8")
    assert revision(tmp_path) is None, "code that the repository does not hold"
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert revision(tmp_path) == head
    (tmp_path / "module.py").write_text("x = 2\n", encoding="utf-8")
    assert revision(tmp_path) == f"{head}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(tmp_path) is None, "no git program"


def test_wall_time_adds_up_over_resumes(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with run.lock():
        now += 10
        run.log({"step": 1})
        now += 5
        run.log({"step": 2})
    now += 500
    again = RunFolder.open(run.path)
    with again.lock():
        now += 1
        again.truncate_metrics(1)  # the lost step took its time too
        now += 3
        again.log({"step": 2})
        again.finish({})
    assert [record["wall_time"] for record in again.metrics()] == [10, 19]
    assert again.result()["wall_time"] == 19


def test_a_record_is_a_line(run: RunFolder) -> None:
    run.log({"step": 1, "loss": torch.tensor(0.5), "name": "é\n", "parts": (1, np.float32(2))})
    run.log({"step": 2, "loss": math.inf, "nested": {"a": [math.nan, True, None]}})
    assert len((run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    first, second = run.metrics()
    assert {"step": 1, "loss": 0.5, "name": "é\n", "parts": [1, 2.0]}.items() <= first.items()
    assert second["loss"] is None
    assert second["nested"] == {"a": [None, True, None]}


@pytest.mark.parametrize("half", [b'{"step": 2, "lo', b"\xff\xff", b"{"])
def test_metrics_go_back_with_the_checkpoint(run: RunFolder, half: bytes) -> None:
    """And an incomplete line is dropped."""
    run.truncate_metrics(0)
    for step in (1, 2, 3):
        run.log({"step": step})
        run.log({"note": f"after {step}"})
    with open((run.path / "metrics.jsonl"), "ab") as file:
        file.write(half)
    for last, kept in ((5, 6), (2, 4), (0, 0)):
        run.truncate_metrics(last)
        assert len(run.metrics()) == kept
    run.log({"step": 1})
    assert [record["step"] for record in run.metrics()] == [1]


def test_metrics_of_stages(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    first, second = (open_run(tmp_path / name, CONFIG) for name in ("one", "two"))
    run.copy_stage_metrics([first.path])  # without any epoch
    assert run.metrics() == []
    with first.lock():
        monkeypatch.setattr(time, "monotonic", lambda: 1600.0)
        first.log({"step": 1, "loss": 2.0})
    second.log({"step": 1, "loss": 3.0})
    run.copy_stage_metrics([first.path])
    assert run.metrics() == first.metrics()
    # Interrupted after the stage, only the stage knows the time before.
    again = RunFolder(run.path)
    again.copy_stage_metrics([first.path])
    again.finish({})
    assert again.result()["wall_time"] == 600
    run.copy_stage_metrics([first.path, second.path])
    found = [(record["stage"], record["loss"]) for record in run.metrics()]
    assert found == [("one", 2.0), ("two", 3.0)]


def test_a_link_out_of_the_folder_is_refused(run: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("figures", "checkpoint", "model", "metrics.jsonl"):
        (run.path / name).symlink_to(outside / name if "." in name else outside)
    for write in (
        lambda: run.write_atomic("figures/new/a", b"new"),
        lambda: run.log({"step": 1}),
        lambda: run.checkpoint_dir,
        lambda: run.model_dir,
    ):
        with pytest.raises(RunError, match="must be inside its folder"):
            write()
    assert not list(outside.iterdir())


def test_a_full_disk_keeps_the_old_file(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.write_atomic("deep/notes", "ü\r\n").read_bytes() == "ü\r\n".encode()
    run.write_atomic("notes", b"old")
    before = {path.name for path in run.path.iterdir()}

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    for name in ("notes", "result.json"):
        with pytest.raises(OSError, match="No space left"):
            run.write_atomic(name, b"new")
    assert (run.path / "notes").read_bytes() == b"old"
    assert {path.name for path in run.path.iterdir()} == before


# As RunFolder.lock does, without the seconds that importing it takes.
HOLDER = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_dead(run: RunFolder) -> None:
    command = [sys.executable, "-c", HOLDER, str(run.path / ".lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        message = r"The run folder .* is in use by process \d+ on .+; wait until it ends"
        with pytest.raises(RunError, match=message), run.lock():
            pass
        with pytest.raises(RunError, match=message):
            open_run(run.path, CONFIG, overwrite=True)
        (run.path / ".notes.1.tmp").write_text("half", encoding="utf-8")
        # Killed without a chance to clean up: its lock file stays, and does not matter.
        holder.kill()
    with run.lock():
        assert not (run.path / ".notes.1.tmp").exists()


def test_a_file_system_without_locks(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(runs.fcntl, "flock", Mock(side_effect=missing))
    with run.lock():
        run.log({"step": 1})
    assert len(run.metrics()) == 1
