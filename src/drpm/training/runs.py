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

# Removed by overwriting, the result first, so that a half-removed run does not look finished.
_CONTENTS: Final = (RESULT, MODEL, CHECKPOINTS, METRICS, FIGURES, EVENTS, ARRAYS, PAGE)


@final
class RunFolder:
    """The folder of one run; use :meth:`open` or :func:`open_run`.

    Hold :meth:`lock` to write; reading needs no lock.
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
        """The path of a file of this run; raise if it is outside the folder."""
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
        """Seconds spent on this run, including before interruptions."""
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
        """All records, in order, without an incomplete last line."""
        records: list[dict[str, Any]] = []
        with suppress(FileNotFoundError, ValueError):
            for line in (self.path / METRICS).read_bytes().splitlines():
                records.append(json.loads(line))
        return records

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold an exclusive lock on the run folder."""
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
                # Left by a killed process, since no other process writes.
                for leftover in self.path.glob(".*.tmp"):
                    _remove(leftover)
            times = [record["wall_time"] for record in self.metrics() if "wall_time" in record]
            self._start, self._before = time.monotonic(), float(times[-1]) if times else 0.0
            yield

    def _make_room(self, outputs: Sequence[str]) -> None:
        """Remove an existing run; raise if the folder holds other files."""
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK)
        if others and CONFIG not in others:
            raise RunError(
                f"The folder {self.path} is not empty and contains no run "
                f"(it has {others[0]}); choose another folder."
            )
        for name in (*_CONTENTS, *outputs):
            entry = self.path / name
            if entry.exists() or entry.is_symlink():
                # Rename first: a half-removed stage would look finished.
                _remove(entry.rename(self.path / f".{name}.tmp"))

    def write_atomic(self, relative: Path | str, content: bytes | str) -> Path:
        """Write a file of this run atomically; text as UTF-8. Creates missing folders."""
        target = self._inside(relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content.encode() if isinstance(content, str) else content)
        return target

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics, with ``wall_time``; NaN and infinity become null.

        Log before saving the step's checkpoint, so that a resumed run has each line once.
        """
        line = json.dumps(_plain({**record, "wall_time": round(self.wall_time, 3)}))
        with open(self._inside(METRICS), "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def copy_stage_metrics(self, stages: Sequence[Path]) -> None:
        """Copy the metrics of stages to the run; records name their stage if there are several."""
        records, total = [], 0.0
        for stage in stages:
            before = total
            for record in RunFolder(stage).metrics():
                total = before + record.get("wall_time", 0.0)
                named = {"stage": stage.name} if len(stages) > 1 else {}
                records.append({**record, **named, "wall_time": round(total, 3)})
        self._write_metrics(records)
        # Stages also count the time before interruptions.
        self._before += max(0.0, total - self.wall_time)

    def truncate_metrics(self, step: int) -> None:
        """Drop metrics after a step, and an incomplete last line."""
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
        """Write the result, which marks the run as finished.

        By default the seed is ``seed`` or ``training.seed`` of the configuration, and the wall time
        that of this folder. ``facts``: additional entries, such as the command.
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
    """Open or create the run in a folder; raise if its settings differ.

    ``text``: all settings of the run, as TOML. ``overwrite`` removes an existing run and its
    ``outputs``. With several devices all processes call this, and the first one creates the folder.
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
    """Describe the first setting in which two configurations differ."""
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
    # The data may differ because of another setting: report that one.
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
    """The commit of this code, marked if there are uncommitted changes; None if untracked."""

    def git(*arguments: str) -> str:
        # Without optional locks, to not disturb a commit in progress.
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
    """Convert tensors and arrays to JSON types; NaN and infinity become null."""
    return json.loads(to_json(value, inf_nan_mode="null", fallback=lambda x: x.tolist()))
