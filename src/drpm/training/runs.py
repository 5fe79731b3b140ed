"""A run is a folder: its configuration, its metrics line by line, its checkpoints, its result."""

import errno
import fcntl
import functools
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, final

import torch

from drpm.training.checkpoint import last_good, write_atomic
from drpm.training.errors import BEGIN_ANEW, InUse, RunError, reason

Status: TypeAlias = Literal["new", "cut off", "finished"]

CONFIG: Final = "config.toml"
METRICS: Final = "metrics.jsonl"
RESULT: Final = "result.json"
CHECKPOINTS: Final = "checkpoint"
MODEL: Final = "model"
FIGURES: Final = "figures"
EVENTS: Final = "events"
ARRAYS: Final = "arrays.npz"
PAGE: Final = "index.html"
STACK_MEMBERS: Final = "stack.json"
LOCK: Final = ".lock"

# How a revision ends whose tree had uncommitted changes.
DIRTY: Final = "-dirty"

# The setting that says what is in data of one's own.
FINGERPRINT: Final = "fingerprint"

# What starting over removes, the result first: a half-removed run must not look finished. The
# configuration is not among them, because the new one takes its place in one rename.
_CONTENTS: Final = (
    RESULT,
    MODEL,
    CHECKPOINTS,
    STACK_MEMBERS,
    METRICS,
    FIGURES,
    EVENTS,
    ARRAYS,
    PAGE,
)


@final
class RunFolder:
    """The folder of one run; use :meth:`create` or :meth:`open`.

    Whoever writes holds :meth:`lock`; reading needs none.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     run = RunFolder.create(Path(folder) / "first", "seed = 3\\n")
        ...     with run.lock():
        ...         run.log({"step": 1, "loss": 0.5})
        ...         run.finish({"accuracy": 0.9})
        ...     run.status, run.result()["seed"]
        ('finished', 3)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._since = time.monotonic()
        self._before: float | None = None
        self._mended = False

    @classmethod
    def create(cls, path: Path | str, config_text: str, *, overwrite: bool = False) -> Self:
        """A new run in a new or empty folder.

        Arguments:
            path: The folder; made, with its parents, where it is missing.
            config_text: Everything that is needed to run it again, as TOML.
            overwrite: Whether a run that lies there is removed first. A folder that holds
                anything else than a run is never touched.
        """
        run = cls(Path(path))
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.lock():
                run._make_room(overwrite)
                run.write_atomic(CONFIG, config_text)
        except OSError as error:
            raise RunError(
                f"The run folder {path} cannot be made, because {reason(error)}."
            ) from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """The run that lies in a folder."""
        run = cls(Path(path))
        if not run.config_path.is_file():
            raise RunError(f"The folder {path} holds no run: {CONFIG} is missing.")
        return run

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def result_path(self) -> Path:
        return self.path / RESULT

    @property
    def checkpoint_dir(self) -> Path:
        return self._own(CHECKPOINTS)

    @property
    def model_dir(self) -> Path:
        return self._own(MODEL)

    @property
    def figures_dir(self) -> Path:
        return self._own(FIGURES)

    @property
    def events_dir(self) -> Path:
        """For TensorBoard."""
        return self._own(EVENTS)

    def _own(self, name: str) -> Path:
        """A folder of this run, unless a link leads elsewhere."""
        self.inside(name)
        return self.path / name

    @property
    def status(self) -> Status:
        """Whether the run has a result, has left traces, or has done nothing yet."""
        with suppress(OSError, ValueError):
            self.result()
            return "finished"
        traces = self.metrics_path.exists() or self.checkpoint_dir.exists()
        return "cut off" if traces else "new"

    @property
    def wall_time(self) -> float:
        """Seconds spent on this run so far, those before it was cut off included."""
        if self._before is None:
            self._before = self._logged_time()
        return self._before + time.monotonic() - self._since

    def _logged_time(self) -> float:
        """The last time in the metrics."""
        times = [record["wall_time"] for record in self.metrics() if "wall_time" in record]
        return float(times[-1]) if times else 0.0

    def config_text(self) -> str:
        try:
            return self.config_path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RunError(
                f"The run in {self.path} has a damaged {CONFIG}, which is not text in UTF-8; "
                f"{BEGIN_ANEW}."
            ) from error

    def require_settings(self, text: str) -> None:
        """Refuse to go on with other settings than those that the run was begun with.

        Data that one side does not know by a fingerprint, as an earlier version did not, is taken
        on trust.
        """
        before = self.config_text()
        if not all(map(_fingerprint_lines, (before, text))):
            before, text = map(_without_fingerprint, (before, text))
        if before != text:
            raise RunError(
                f"The run in {self.path} has other settings ({first_difference(before, text)}); "
                f"{BEGIN_ANEW}."
            )

    def result(self) -> dict[str, Any]:
        """What :meth:`finish` wrote."""
        content = json.loads(self.result_path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"The file {self.result_path} is not what a run writes.")
        return content

    def metrics(self) -> list[dict[str, Any]]:
        """All records, in order, without a last line that a kill cut short."""
        try:
            lines = self.metrics_path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := _parse(line)) is not None]

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Be the only one who writes this run, from here to the end of the block.

        The operating system gives the lock back when the process ends, however it ends, so a
        dead process never stands in the way.

        Arguments:
            wait: Whether to wait for whoever is at it, which suits what takes no time.
        """
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(
                f"The run folder {self.path} cannot be written, because {reason(error)}."
            ) from error
        try:
            self._take(descriptor, wait)
            self._since, self._before, self._mended = time.monotonic(), None, False
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, wait: bool) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            # Some cluster file systems know no locks; a run there goes without.
            if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                return
            owner = os.read(descriptor, 1000).decode(errors="replace").strip()
            raise InUse(
                f"The run folder {self.path} is in use by {owner or 'another process'}; "
                "wait until it ends, or choose another folder."
            ) from None
        # Only for the sentence above, so a full disk may keep it from being written.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        # With nobody else writing, temporary files can only be leftovers.
        for leftover in self.path.glob(".*.tmp"):
            with suppress(OSError):
                leftover.unlink()

    def _make_room(self, overwrite: bool) -> None:
        if self.config_path.exists():
            if not overwrite:
                raise RunError(
                    f"The folder {self.path} holds a run already ({self.status}); "
                    f"resume it, {BEGIN_ANEW}."
                )
            for name in _CONTENTS:
                entry = self.path / name
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
        elif others := sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK):
            raise RunError(
                f"The folder {self.path} is not empty and holds no run (it has {others[0]}); "
                "choose another folder."
            )

    def inside(self, relative: Path | str) -> Path:
        """The path of a file of this run; one that leads out of the folder is refused."""
        root = self.path.resolve()
        try:
            # Resolved, so that a symbolic link on the way is followed before it is judged.
            target = (root / relative).resolve()
        except (OSError, ValueError, RuntimeError):
            target = root
        outside = Path(relative).is_absolute() or ".." in Path(relative).parts
        if outside or target == root or not target.is_relative_to(root):
            raise RunError(
                f"A file of the run must lie inside its folder {self.path}, "
                f"but got the path {str(relative)!r}."
            )
        return target

    def write_atomic(self, relative: Path | str, content: bytes | str) -> Path:
        """Put a file of this run in place as a whole.

        Arguments:
            relative: Its path from the run folder on; missing folders are made.
            content: What it is to hold; text is written as UTF-8.
        """
        target = self.inside(relative)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise self._not_written(str(relative), error) from error
        return target

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the metrics; ``wall_time`` is added to it.

        A number that is not finite becomes null, because JSON has no word for it. What belongs
        to a step is logged before that step's checkpoint is saved, so that a resumed run neither
        misses it nor has it twice.
        """
        target = self.inside(METRICS)
        line = json.dumps(_plain({**record, "wall_time": round(self.wall_time, 3)})).encode()
        size = None
        try:
            if not self._mended:
                self._drop_half_line()
            with open(target, "ab") as file:
                size = file.tell()
                file.write(line + b"\n")
        except OSError as error:
            if size is not None:
                with suppress(OSError):
                    os.truncate(target, size)
            raise self._not_written(METRICS, error) from error

    def take_metrics(self, stages: Sequence[Path]) -> None:
        """Make the metrics of stages those of the run; each record of several names its stage.

        Args:
            stages: The folders of the stages, in order.
        """
        spent, lines, before = self.wall_time, [], 0.0
        for stage in stages:
            after = before
            for record in RunFolder(stage).metrics():
                after = before + record.get("wall_time", 0.0)
                named = {"stage": stage.name} if len(stages) > 1 else {}
                lines.append({**record, **named, "wall_time": round(after, 3)})
            before = after
        self.write_atomic(METRICS, "".join(json.dumps(line) + "\n" for line in lines))
        # Only the stages know the time before an interruption. What this process has spent may be
        # a part of it.
        self._before = (self._before or 0.0) + max(0.0, self._logged_time() - spent)

    def truncate_metrics(self, step: int) -> None:
        """Go back to a checkpoint: drop the metrics from the first later step on.

        Arguments:
            step: The checkpoint's step.
        """
        # The time that went into the lost steps was spent all the same.
        _ = self.wall_time
        try:
            lines = self.metrics_path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        kept = []
        for line in lines:
            record = _parse(line)
            if record is None:
                continue
            at = record.get("step")
            if isinstance(at, int | float) and at > step:
                break
            kept.append(line)
        if kept != lines:
            self.write_atomic(METRICS, b"".join(kept))

    def finish(
        self,
        metrics: Mapping[str, Any],
        *,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        facts: Mapping[str, Any] | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Write the result, which is what makes a run finished.

        Arguments:
            metrics: The final numbers.
            seed: The seed; where none is given, ``seed`` or ``training.seed`` of the
                configuration.
            device: What the run was computed on.
            facts: What else a reader should know, such as the command or the data.
            wall_time: Seconds that it took; by default those that were spent on this folder.
        """
        result = {
            **_plain(dict(facts or {})),
            "metrics": _plain(dict(metrics)),
            "seed": self._configured_seed() if seed is None else seed,
            "versions": versions(),
            "device": describe_device(device),
            "wall_time": round(self.wall_time if wall_time is None else wall_time, 3),
            "git_revision": git_revision(),
        }
        self.write_atomic(RESULT, json.dumps(result, indent=2) + "\n")

    def _configured_seed(self) -> int | None:
        try:
            config = tomllib.loads(self.config_text())
        except (OSError, ValueError):
            return None
        seed = config.get("seed", config.get("training", {}).get("seed"))
        return seed if isinstance(seed, int) else None

    def _drop_half_line(self) -> None:
        """Remove what a kill left of a last line, so that the next one starts afresh."""
        if self.metrics_path.exists():
            content = self.metrics_path.read_bytes()
            if not content.endswith(b"\n"):
                os.truncate(self.metrics_path, content.rfind(b"\n") + 1)
        self._mended = True

    def _not_written(self, name: str, error: OSError) -> RunError:
        return RunError(
            f"The file {name} of the run {self.path} was not written, because {reason(error)}; "
            f"{last_good(self.checkpoint_dir)}."
        )


def first_difference(before: str, now: str) -> str:
    r"""The first setting in which two configurations differ, in words.

    Example:
        >>> first_difference("[training]\nepochs = 2", "[training]\nepochs = 3")
        'training.epochs was 2 and is now 3'
    """
    try:
        old, new = (_flat(tomllib.loads(text)) for text in (before, now))
    except tomllib.TOMLDecodeError:
        return f"its {CONFIG} is damaged, and no TOML"
    # Data come last: a setting that chooses other data is what a person has changed.
    for name in sorted((*old, *new), key=FINGERPRINT.__eq__):
        was, is_now = (repr(x[name]) if name in x else "not there" for x in (old, new))
        if was != is_now and name == FINGERPRINT:
            # Which hash it was helps nobody.
            if "data" in new:
                return f"what {new['data']} holds is not what it was begun with"
            return "the data are others than those it was begun with"
        if was != is_now:
            return f"{name} was {was} and is now {is_now}"
    return "in their form"


def _fingerprint_lines(text: str) -> list[str]:
    return [line for line in text.splitlines(keepends=True) if line.startswith(f"{FINGERPRINT} =")]


def _without_fingerprint(text: str) -> str:
    for line in _fingerprint_lines(text):
        text = text.replace(line, "", 1)
    return text


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        inner = _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found |= {f"{prefix}{name}": value} if inner is None else inner
    return found


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    import drpm

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "drpm": drpm.__version__,
        "numpy": metadata.version("numpy"),
    }


def describe_device(device: torch.device | str) -> str:
    """The device as torch spells it, with the card's name where there is one."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


@functools.cache
def git_revision(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit that this code comes from, marked where it was changed since, or None.

    None is also the answer where the code only lies inside some repository, as in a virtual
    environment, without belonging to it.
    """

    def git(*arguments: str) -> str:
        # Without optional locks: asking must not disturb a commit in progress.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return None
        changed = bool(git("status", "--porcelain", "--", "."))
        return git("rev-parse", "HEAD") + (DIRTY if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _parse(line: bytes) -> dict[str, Any] | None:
    """One record, or None for a line that was cut short or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """What JSON can hold: tensors and arrays as numbers and lists, no NaN and no infinity."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
