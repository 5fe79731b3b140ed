"""Run folders: what they hold, who may write them, and what a kill or a full disk leaves."""

import builtins
import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import drpm
from drpm.training import runs
from drpm.training.checkpoint import save_state
from drpm.training.errors import RunError
from drpm.training.runs import RunFolder, first_difference
from tests.training.toys import make_program

CONFIG = '[training]\nseed = 5\nname = "ü"\n'


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "first", CONFIG)


# Making, opening, starting over.


def test_a_run_is_made_and_opened(run: RunFolder) -> None:
    assert run.path.name == "first"
    again = RunFolder.open(str(run.path))
    assert again.path == run.path
    assert again.config_text() == CONFIG
    assert run.config_path.read_text(encoding="utf-8") == CONFIG
    assert [path.name for path in (run.metrics_path, run.result_path, run.checkpoint_dir)] == [
        "metrics.jsonl",
        "result.json",
        "checkpoint",
    ]
    assert [path.name for path in (run.model_dir, run.figures_dir, run.events_dir)] == [
        "model",
        "figures",
        "events",
    ]


def test_a_folder_without_a_run_is_not_opened(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        message = f"The folder {path} holds no run: config.toml is missing."
        with pytest.raises(RunError, match=re.escape(message)):
            RunFolder.open(path)


def test_a_run_is_not_overwritten_unasked(run: RunFolder) -> None:
    run.log({"step": 1})
    with pytest.raises(
        RunError, match=r"a run already \(cut off\); resume it, choose .*--overwrite\)"
    ):
        RunFolder.create(run.path, "")
    assert run.config_text() == CONFIG


def test_overwriting_removes_the_old_run_and_nothing_else(run: RunFolder) -> None:
    run.log({"step": 1})
    run.write_atomic("figures/a.png", b"picture")
    save_state(run.checkpoint_dir, make_program().state(), 1)
    run.finish({})
    (run.path / "notes.txt").write_text("mine", encoding="utf-8")
    again = RunFolder.create(run.path, "seed = 1\n", overwrite=True)
    assert again.status == "new"
    assert again.config_text() == "seed = 1\n"
    assert {path.name for path in run.path.iterdir()} == {".lock", "config.toml", "notes.txt"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_something_else_is_never_taken(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(RunError, match=r"is not empty and holds no run \(it has thesis\.tex\)"):
        RunFolder.create(tmp_path, CONFIG, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_an_overwritten_link_does_not_lead_to_what_it_points_to(
    run: RunFolder, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (run.path / "checkpoint").symlink_to(elsewhere)
    RunFolder.create(run.path, CONFIG, overwrite=True)
    assert (elsewhere / "kept").exists()
    assert not (run.path / "checkpoint").exists()


def test_a_cut_short_creation_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.123.tmp").write_text("half", encoding="utf-8")
    RunFolder.create(tmp_path, CONFIG)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "config.toml"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file"
    for name, folder in (("", f"the folder {path}."), ("inner", "a folder that it should lie in")):
        because = f"{path / name} cannot be made, because a file is in the place of {folder}"
        with pytest.raises(RunError, match=because):
            RunFolder.create(path / name, CONFIG)


def test_an_unwritable_folder_is_named(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser may write anywhere, so the refusal is played.
    def refuse(path: Any, *_: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with (
        pytest.raises(
            RunError, match="cannot be written, because of the error 'Permission denied'"
        ),
        run.lock(),
    ):
        pass
    with pytest.raises(RunError, match="because of the error 'Permission denied'"):
        RunFolder.create(tmp_path / "other", CONFIG)


# Status and result.


def test_the_status_follows_what_is_there(run: RunFolder) -> None:
    assert run.status == "new"
    run.log({"step": 1})
    assert run.status == "cut off"
    run.finish({"accuracy": 0.5})
    assert run.status == "finished"
    run.result_path.write_text('{"metr', encoding="utf-8")
    assert run.status == "cut off"


def test_a_checkpoint_alone_makes_a_run_cut_off(run: RunFolder) -> None:
    save_state(run.checkpoint_dir, make_program().state(), 1)
    assert run.status == "cut off"


def test_the_result_says_what_it_came_from(run: RunFolder) -> None:
    run.finish({"accuracy": 0.5, "worst": math.nan, "table": np.eye(2)}, device=torch.device("cpu"))
    result = json.loads(run.result_path.read_bytes())
    assert result == run.result()
    assert result["metrics"] == {"accuracy": 0.5, "worst": None, "table": [[1.0, 0.0], [0.0, 1.0]]}
    assert result["seed"] == 5
    assert result["device"] == "cpu"
    assert result["versions"] == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "drpm": drpm.__version__,
        "numpy": np.__version__,
    }
    assert 0 <= result["wall_time"] < 60
    revision = result["git_revision"]
    assert revision is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", revision)


def test_where_the_seed_comes_from(tmp_path: Path) -> None:
    cases = [("seed = 3\n[training]\nseed = 4\n", None, 3), ("", None, None), ("seed = 3\n", 9, 9)]
    for index, (config, given, expected) in enumerate(cases):
        run = RunFolder.create(tmp_path / str(index), config)
        run.finish({}, seed=given)
        assert run.result()["seed"] == expected


def test_the_revision_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
        return subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    code = tmp_path / "package"
    code.mkdir()
    (code / "module.py").write_text("x = 1\n", encoding="utf-8")
    assert runs.git_revision.__wrapped__(code) is None
    git("init", "-q")
    assert runs.git_revision.__wrapped__(code) is None, "code that the repository does not hold"
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert runs.git_revision.__wrapped__(code) == head
    (code / "module.py").write_text("x = 2\n", encoding="utf-8")
    assert runs.git_revision.__wrapped__(code) == f"{head}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runs.git_revision.__wrapped__(code) is None, "no git program"


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
        # What was lost took its time too.
        again.truncate_metrics(1)
        now += 3
        again.log({"step": 2})
        assert again.wall_time == 19
        again.finish({})
    assert [record["wall_time"] for record in again.metrics()] == [10, 19]
    assert again.result()["wall_time"] == 19


def test_the_time_of_a_stage_is_that_of_the_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off after the stage, it knows of the time before by the stage alone."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stage = RunFolder.create(run.path / "training", "")
    with stage.lock():
        now += 600
        stage.log({"step": 1})
    again = RunFolder.open(run.path)
    with again.lock():
        now += 18
        again.take_metrics([stage.path])
        assert again.wall_time == 600
        now += 2
        again.finish({})
    assert again.result()["wall_time"] == 602
    # In one go, the run itself knows it, and what came before the stage.
    other = RunFolder.open(run.path)
    with other.lock():
        now += 1000
        other.take_metrics([stage.path])
        assert other.wall_time == 1600


# Metrics.


def test_a_record_is_a_line(run: RunFolder) -> None:
    run.log({"step": 1, "loss": torch.tensor(0.5), "name": "é\n", "parts": (1, np.float32(2))})
    run.log({"step": 2, "loss": math.inf, "nested": {"a": [math.nan, True, None]}})
    lines = run.metrics_path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    first, second = run.metrics()
    assert {key: first[key] for key in ("step", "loss", "name", "parts")} == {
        "step": 1,
        "loss": 0.5,
        "name": "é\n",
        "parts": [1, 2.0],
    }
    assert second["loss"] is None
    assert second["nested"] == {"a": [None, True, None]}


def test_metrics_go_back_with_the_checkpoint(run: RunFolder) -> None:
    run.truncate_metrics(0)
    for step in (1, 2, 3):
        run.log({"step": step})
        run.log({"note": f"after {step}"})
    run.truncate_metrics(5)
    assert len(run.metrics()) == 6
    run.truncate_metrics(2)
    kept = [record.get("step", record.get("note")) for record in run.metrics()]
    assert kept == [1, "after 1", 2, "after 2"]
    run.truncate_metrics(0)
    assert run.metrics() == []


@pytest.mark.parametrize("half", [b'{"step": 2, "lo', b'{"step": 2}', b"\xff\xff", b"{"])
def test_a_half_written_line_is_dropped(run: RunFolder, half: bytes) -> None:
    run.log({"step": 1})
    with open(run.metrics_path, "ab") as file:
        file.write(half)
    again = RunFolder.open(run.path)
    assert [record["step"] for record in again.metrics()] == [1]
    again.log({"step": 2})
    assert [record["step"] for record in again.metrics()] == [1, 2]
    assert len(again.metrics_path.read_bytes().splitlines()) == 2

    with open(run.metrics_path, "ab") as file:
        file.write(half)
    again.truncate_metrics(2)
    assert again.metrics_path.read_bytes().endswith(b"}\n")
    assert [record["step"] for record in again.metrics()] == [1, 2]


# Files.


def test_a_file_is_put_in_place(run: RunFolder) -> None:
    path = run.write_atomic("figures/deep/a.txt", "ü\r\n")
    assert path.read_bytes() == "ü\r\n".encode()
    run.write_atomic(Path("figures") / "deep" / "a.txt", b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "path", ["../a", "figures/../../a", "figures/../a", "/tmp/a", "", ".", "..", "a\0b"]
)
def test_a_path_out_of_the_folder_is_refused(run: RunFolder, path: str) -> None:
    with pytest.raises(
        RunError, match=r"must lie inside its folder .*, but got the path"
    ) as caught:
        run.write_atomic(path, b"")
    assert repr(path) in str(caught.value)
    assert not (run.path.parent / "a").exists()


def test_a_link_out_of_the_folder_is_refused(run: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("old", encoding="utf-8")
    (run.path / "figures").symlink_to(outside)
    (run.path / "file").symlink_to(outside / "file")
    (run.path / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (run.path / "loop").symlink_to(run.path / "loop")
    for path in ("figures/a", "figures/new/a", "file", "loop/a"):
        with pytest.raises(RunError, match="must lie inside"):
            run.write_atomic(path, b"new")
    with pytest.raises(RunError, match="must lie inside"):
        run.log({"step": 1})
    assert (outside / "file").read_text(encoding="utf-8") == "old"
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_a_run_may_lie_behind_a_link(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.path)
    RunFolder.open(tmp_path / "link").write_atomic("a", b"x")
    assert (run.path / "a").read_bytes() == b"x"


class FullDisk:
    """Opening to write works; the write stops half-way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = builtins.open
        monkeypatch.setattr(builtins, "open", self)

    def __call__(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = self.open(path, mode, *arguments, **options)
        return Half(file) if set(mode) & set("wa") else file


class Half:
    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self) -> "Half":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_names_the_last_good_checkpoint(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log({"step": 1})
    run.write_atomic("notes", b"old")
    save_state(run.checkpoint_dir, make_program().state(), 12)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    FullDisk(monkeypatch)
    tries = {
        "metrics.jsonl": lambda: run.log({"step": 2}),
        "notes": lambda: run.write_atomic("notes", b"new"),
        "result.json": lambda: run.finish({}),
    }
    for name, attempt in tries.items():
        message = f"The file {name} of the run {run.path} was not written, because the disk is full"
        end = f"; the last good checkpoint is step 12 in {run.checkpoint_dir}."
        with pytest.raises(RunError, match=re.escape(message + end)):
            attempt()
    monkeypatch.undo()
    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert after == before


# Locks.

HOLDER = """
import sys, time
from drpm.training.runs import RunFolder
with RunFolder.open(sys.argv[1]).lock():
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_until_the_first_is_dead(
    run: RunFolder, holder: subprocess.Popen[str]
) -> None:
    message = rf"The run folder .* is in use by process {holder.pid} on .+; wait until it ends"
    with pytest.raises(RunError, match=message), run.lock():
        pass
    with pytest.raises(RunError, match=message):
        RunFolder.create(run.path, CONFIG, overwrite=True)
    (run.path / ".notes.1.tmp").write_text("half", encoding="utf-8")
    # Killed without a chance to clean up: its lock file stays, and does not matter.
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert str(holder.pid) in (run.path / ".lock").read_text(encoding="utf-8")
    with run.lock():
        assert str(os.getpid()) in (run.path / ".lock").read_text(encoding="utf-8")
        assert not (run.path / ".notes.1.tmp").exists()


def test_a_lock_holds_within_a_process_too_and_ends_with_its_block(run: RunFolder) -> None:
    other = RunFolder.open(run.path)
    with run.lock(), pytest.raises(RunError, match="is in use by process"), other.lock():
        pass
    with pytest.raises(ZeroDivisionError), run.lock():
        _ = 1 / 0
    with other.lock():
        pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_used_without(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(runs.fcntl, "flock", refuse)
    with run.lock():
        run.log({"step": 1})
    assert len(run.metrics()) == 1


@pytest.mark.parametrize("name", ["checkpoint", "model", "figures"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    run = RunFolder.create(tmp_path / "run", "")
    (tmp_path / "elsewhere").mkdir()
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    folder = {"checkpoint": "checkpoint_dir", "model": "model_dir", "figures": "figures_dir"}[name]
    with pytest.raises(RunError, match=f"inside its folder .*, but got the path '{name}'"):
        getattr(run, folder)


def test_a_result_of_another_kind_is_none(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "")
    run.result_path.write_text("[]")
    assert run.status == "new"
    with pytest.raises(ValueError, match="is not what a run writes"):
        run.result()


def test_settings_that_are_no_text_are_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "")
    run.config_path.write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"damaged config\.toml, .* UTF-8; choose .*--overwrite\)"):
        run.config_text()


def test_other_settings_are_refused_with_the_first_of_them(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "a = 1\n[b]\nc = 2\n")
    run.require_settings("a = 1\n[b]\nc = 2\n")
    with pytest.raises(RunError, match=r"other settings \(b.c was 2 and is now not there\)"):
        run.require_settings("a = 1\n")
    assert first_difference("a = [", "a = 1") == "its config.toml is damaged, and no TOML"
    assert first_difference("a = 1", "a = 1 # so") == "in their form"
    # A hash says nothing to anybody.
    before, now = (f'data = "own.npz"\nfingerprint = "{hashed}"' for hashed in ("24a3", "5f00"))
    assert first_difference(before, now) == "what own.npz holds is not what it was begun with"
    other = now.replace("own", "new")
    assert first_difference(before, other) == "data was 'own.npz' and is now 'new.npz'"


def test_the_numbers_of_a_stage_become_those_of_the_run(run: RunFolder, tmp_path: Path) -> None:
    stage = RunFolder.create(tmp_path / "stage", CONFIG)
    run.take_metrics([stage.path])  # without any epoch
    assert run.metrics() == []
    stage.log({"step": 1, "loss": 2.0})
    run.take_metrics([stage.path])
    assert run.metrics() == stage.metrics()
    assert run.metrics()[0]["loss"] == 2.0
