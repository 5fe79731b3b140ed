"""A run is a folder: its configuration, its metrics line by line, its checkpoints, its result."""

import fcntl
import functools
import json
import os
import platform
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal, Self, final

import torch
from pydantic_core import to_json

from drpm.training.checkpoint import write_atomic
from drpm.training.config import flatten
from drpm.training.devices import Devices
from drpm.training.errors import START_OVER, RunError

CONFIG: Final = "config.toml"
METRICS: Final = "metrics.jsonl"
RESULT: Final = "result.json"
CHECKPOINTS: Final = "checkpoint"
MODEL: Final = "model"
FIGURES: Final = "figures"
EVENTS: Final = "events"
ARRAYS: Final = "arrays.npz"
LABELS: Final = "labels.csv"
PAGE: Final = "index.html"
LOCK: Final = ".lock"
# The end of a revision with uncommitted changes.
DIRTY: Final = "-dirty"
# The setting that holds the content hash of the data.
FINGERPRINT: Final = "fingerprint"

# What overwriting removes, the result first: a half-removed run must not look finished. The
# configuration is replaced last.
_CONTENTS: Final = (RESULT, MODEL, CHECKPOINTS, METRICS, FIGURES, EVENTS, ARRAYS, PAGE)


@final
class RunFolder:
    """The folder of one run; use :meth:`open` or :func:`open_run`.

    A process that writes holds :meth:`lock`; reading needs no lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start, self._before = time.monotonic(), 0.0

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """The run in a folder."""
        run = cls(Path(path))
        if not (run.path / CONFIG).is_file():
            raise RunError(f"The folder {path} contains no run: {CONFIG} is missing.")
        return run

    @classmethod
    def open_finished(cls, path: Path | str) -> Self:
        """The finished run in a folder."""
        run = cls.open(path)
        if run.status != "finished":
            raise RunError(
                f"The run in {path} is not finished ({RESULT} is missing or damaged): run its "
                "command again to resume it."
            )
        return run

    @property
    def checkpoint_dir(self) -> Path:
        return self._inside(CHECKPOINTS)

    @property
    def model_dir(self) -> Path:
        return self._inside(MODEL)

    def _inside(self, relative: Path | str) -> Path:
        """The path of a file of this run; refuse one that leads out of the folder."""
        root = self.path.resolve()
        target = (root / relative).resolve()  # follows symbolic links
        if target == root or not target.is_relative_to(root):
            raise RunError(
                f"A file of the run must be inside its folder {self.path}, but got the path "
                f"{str(relative)!r}, which leads to {target}."
            )
        return self.path / relative

    @property
    def status(self) -> Literal["new", "interrupted", "finished"]:
        """Whether the run is finished, interrupted or has not started."""
        with suppress(OSError, RunError):
            self.result()
            return "finished"
        started = (self.path / METRICS).exists() or self.checkpoint_dir.exists()
        return "interrupted" if started else "new"

    @property
    def wall_time(self) -> float:
        """Seconds spent on this run, including those before an interruption."""
        return self._before + time.monotonic() - self._start

    def config_text(self) -> str:
        return (self.path / CONFIG).read_text(encoding="utf-8", errors="replace")

    def result(self) -> dict[str, Any]:
        """What :meth:`finish` wrote."""
        try:
            return dict(json.loads((self.path / RESULT).read_bytes()))
        except (TypeError, ValueError) as error:
            raise RunError(f"The file {self.path / RESULT} is not a readable result.") from error

    def metrics(self) -> list[dict[str, Any]]:
        """All records, in order, without a last line that is incomplete."""
        records: list[dict[str, Any]] = []
        with suppress(FileNotFoundError, ValueError):
            for line in (self.path / METRICS).read_bytes().splitlines():
                records.append(json.loads(line))
        return records

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from writing this run within the block, or until this process is killed."""
        with open(self.path / LOCK, "a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunError(
                    f"The run folder {self.path} is in use by "
                    f"{file.read(1000).strip() or 'another process'}; "
                    "wait until it ends, or choose another folder."
                ) from None
            except OSError:
                pass  # some cluster file systems have no locks
            else:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                file.flush()
                # Nobody else writes, so these are of a process that was killed.
                for leftover in self.path.glob(".*.tmp"):
                    _remove(leftover)
            times = [record["wall_time"] for record in self.metrics() if "wall_time" in record]
            self._start, self._before = time.monotonic(), float(times[-1]) if times else 0.0
            yield

    def _make_room(self, outputs: Sequence[str]) -> None:
        """Remove a run that is there; refuse a folder with anything else."""
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK)
        if others and CONFIG not in others:
            raise RunError(
                f"The folder {self.path} is not empty and contains no run "
                f"(it has {others[0]}); choose another folder."
            )
        for name in (*_CONTENTS, *outputs):
            entry = self.path / name
            if entry.exists() or entry.is_symlink():
                # Renamed first: half of a finished stage would look like all of it.
                _remove(entry.rename(self.path / f".{name}.tmp"))

    def write_atomic(self, relative: Path | str, content: bytes | str) -> Path:
        """Write a file of this run as a whole, text in UTF-8; missing folders are created."""
        target = self._inside(relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content.encode() if isinstance(content, str) else content)
        return target

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics, with ``wall_time``; numbers that are not finite are null.

        Log what belongs to a step before its checkpoint is saved, so that a resumed run has it
        exactly once.
        """
        line = json.dumps(_plain({**record, "wall_time": round(self.wall_time, 3)}))
        with open(self._inside(METRICS), "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def take_metrics(self, stages: Sequence[Path]) -> None:
        """Copy the metrics of stages to the run; if there are several, records name their stage."""
        records, total = [], 0.0
        for stage in stages:
            before = total
            for record in RunFolder(stage).metrics():
                total = before + record.get("wall_time", 0.0)
                named = {"stage": stage.name} if len(stages) > 1 else {}
                records.append({**record, **named, "wall_time": round(total, 3)})
        self._write_metrics(records)
        # Only the stages know the time before an interruption.
        self._before += max(0.0, total - self.wall_time)

    def truncate_metrics(self, step: int) -> None:
        """Drop the metrics after the step of a checkpoint, and a line that is incomplete."""
        if (self.path / METRICS).exists():
            self._write_metrics(takewhile(lambda x: x.get("step", 0) <= step, self.metrics()))

    def _write_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.write_atomic(METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def finish(
        self,
        metrics: Mapping[str, Any],
        *,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        facts: Mapping[str, Any] | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Write the result, after which the run is finished.

        The seed is by default ``seed`` or ``training.seed`` of the configuration, the wall time
        the seconds spent on this folder; ``facts`` are further entries, such as the command.
        """
        import drpm

        if seed is None:
            config = tomllib.loads(self.config_text())
            seed = config.get("seed", config.get("training", {}).get("seed"))
        where = str(device)
        if torch.device(device).type == "cuda" and torch.cuda.is_available():
            where += f" ({torch.cuda.get_device_name(device)})"
        result = {
            **_plain(dict(facts or {})),
            "metrics": _plain(dict(metrics)),
            "seed": seed,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "drpm": drpm.__version__,
                "numpy": metadata.version("numpy"),
            },
            "device": where,
            "wall_time": round(self.wall_time if wall_time is None else wall_time, 3),
            "git_revision": git_revision(),
        }
        self.write_atomic(RESULT, json.dumps(result, indent=2) + "\n")


def open_run(
    path: Path,
    text: str,
    *,
    overwrite: bool = False,
    outputs: Sequence[str] = (),
    devices: Devices | None = None,
) -> RunFolder:
    """The run in a folder, which is created if there is none; other settings are refused.

    The text has all settings that the run depends on, as TOML. To overwrite is to remove a run that
    is there, with its ``outputs`` besides the files of every run. With several devices all
    processes call this, and the first one creates the folder.
    """
    run, devices = RunFolder(path), devices or Devices()
    if devices.is_first and (overwrite or not (path / CONFIG).exists()):
        path.mkdir(parents=True, exist_ok=True)
        with run.lock():
            # Another process may have created it in the meantime.
            if overwrite or not (path / CONFIG).exists():
                run._make_room(outputs)
                run.write_atomic(CONFIG, text)
    devices.barrier()
    if difference := _first_difference(run.config_text(), text):
        raise RunError(f"The run in {path} has different settings ({difference}); {START_OVER}.")
    return run


def _first_difference(before: str, now: str) -> str | None:
    """The first setting in which two configurations differ, in words."""
    try:
        old, new = (
            {name: x for name, x in flatten(tomllib.loads(text)) if not isinstance(x, dict)}
            for text in (before, now)
        )
    except tomllib.TOMLDecodeError:
        return f"{CONFIG} is damaged"
    changed = [name for name in (*old, *new) if old.get(name) != new.get(name)]
    if changed == [FINGERPRINT] * len(changed):
        return "the data have changed" if changed else None
    # Another setting may be the reason why the data differ.
    name = next(name for name in changed if name != FINGERPRINT)
    was, is_now = (repr(x[name]) if name in x else "unset" for x in (old, new))
    return f"{name} was {was} and is now {is_now}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@functools.cache
def git_revision(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of this code, marked if it has uncommitted changes; None if it is not tracked."""

    def git(*arguments: str) -> str:
        # Optional locks could disturb a commit in progress.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return None
        return git("rev-parse", "HEAD") + (DIRTY if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _plain(value: Any) -> Any:
    """What JSON can hold: tensors and arrays as numbers and lists, no NaN and no infinity."""
    return json.loads(to_json(value, inf_nan_mode="null", fallback=lambda x: x.tolist()))
