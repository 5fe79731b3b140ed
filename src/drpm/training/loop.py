"""The training loop of all models."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor, nn

from drpm.training.checkpoint import load_latest, load_model, load_modules, save_model, save_state
from drpm.training.compiling import CapturedStep, compile_step
from drpm.training.config import TrainingConfig, dumps
from drpm.training.devices import TRAINING_LOCK, Devices, matmul_precision
from drpm.training.errors import Interrupted, RunError
from drpm.training.program import ExponentialSchedule, Objective, Program, Readings, count_steps
from drpm.training.runs import CONFIG, EVENTS, FINGERPRINT, RunFolder, open_run

if TYPE_CHECKING:
    from rich.console import Console

# On a CUDA device "auto" compiles runs of at least this many steps: compiling takes up to a minute
# and saves up to 1.2 ms a step.
WORTH_COMPILING: Final = 30_000
_SECONDS_PER_LINE: Final = 10.0  # of progress in log files


@final
class TrainingProgress:
    """Steps, loss, steps per second and time left: a progress bar, or lines without a terminal."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True)

    def start(self, total_steps: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._total, self._first, self._begin = total_steps, done, time.monotonic()
        self._last_line = -_SECONDS_PER_LINE
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        hidden = not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, disable=hidden)
        self._task = self._bar.add_task("", total=total_steps, completed=done)
        self._bar.start()
        if done:
            self._print(f"resuming after step {done:,} of {total_steps:,}")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        elapsed = time.monotonic() - self._begin
        rate = (step - self._first) / max(elapsed, 1e-9)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        text = f"loss {metrics['loss']:.4g}, {speed} steps/s"
        if step < self._total:
            seconds = (self._total - step) / max(rate, 1e-9)
            text += f", {timedelta(seconds=round(seconds))} left"
        self._bar.update(self._task, completed=step, description=text)
        due = elapsed - self._last_line >= _SECONDS_PER_LINE or step == self._total
        if due and not self._console.is_terminal:
            self._last_line = elapsed
            self._print(f"step {step:,} of {self._total:,}: {text}")

    def stop(self) -> None:
        self._bar.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the list, so that a step can finish.

    A second signal of the same kind has its default effect.
    """
    noted: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(number, previous[number])

    # Only the main thread can have handlers.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # None: a handler that was not set by Python and cannot be restored.
            if signal.getsignal(number) is not None:
                previous[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for handled, handler in previous.items():
            signal.signal(handled, handler)


ProgressFactory = Callable[[str], TrainingProgress | None]
"""Maps the name of a stage to its progress display."""

BeforeEpoch = Callable[[Program, Sequence[RunFolder], int], None]
"""Called with the program, its run folders and the epoch (from 0).

May change the model in place, but only depending on the model and the epoch: a resumed run calls it
again.
"""


def train(
    program: Program,
    runs: Sequence[RunFolder],
    *,
    before_epoch: BeforeEpoch | None = None,
    progress: TrainingProgress | None = None,
) -> None:
    """Train from the last checkpoint, if any, to the last epoch; save the models, finish the runs.

    Each run has a folder; the first one has the checkpoint. Holds the run locks and the training
    lock, so ``progress`` must not wait for another training thread. With several devices all
    processes call this; the first one writes and shows progress.

    Raises:
        Interrupted: On SIGINT or SIGTERM, after the step is finished and saved.
        RunError: If a loss term is not finite.
    """
    written = runs if program.devices.is_first else []
    with TRAINING_LOCK, matmul_precision(program.config.matmul), ExitStack() as stack:
        for run in written:
            stack.enter_context(run.lock())
        step = _resume(program, runs)
        for run in written:
            run.truncate_metrics(step)
        if step < program.config.epochs * program.steps_per_epoch:
            _take_steps(program, runs, step, before_epoch, progress if written else None)
        for index, run in enumerate(written):
            save_model(run.model_dir, program.model_state(index), {"stage": run.path.name})
            run.finish({}, device=program.device)
        program.devices.barrier()


def _resume(program: Program, runs: Sequence[RunFolder]) -> int:
    """Load the last checkpoint, if there is one; return its step."""
    saved = load_latest(runs[0].checkpoint_dir)
    if saved is None:
        program.noise.manual_seed(program.seed)
        return 0
    # Stacked runs share the checkpoint of the first run.
    if saved.runs != _names(runs):
        raise RunError(
            f"The run in {runs[0].path} was started together with the runs {saved.runs} and cannot "
            f"be resumed with {_names(runs)}: give the same seeds in the same order, or another "
            "folder."
        )
    program.load_state(saved.state)
    return saved.step


def _names(runs: Sequence[RunFolder]) -> list[str]:
    return [os.path.relpath(run.path, runs[0].path) for run in runs]


def _take_steps(
    program: Program,
    runs: Sequence[RunFolder],
    step: int,
    before_epoch: BeforeEpoch | None,
    progress: TrainingProgress | None,
) -> None:
    config, devices, per_epoch = program.config, program.devices, program.steps_per_epoch
    total = config.epochs * per_epoch
    program.set_learning_rate(learning_rate(config, step // per_epoch))
    take_step = _prepare(program, total - step)
    written = runs if devices.is_first else []
    with ExitStack() as stack:
        events = [stack.enter_context(writer) for writer in _open_events(written, step)]
        if progress is not None:
            progress.start(total, step)
            stack.callback(progress.stop)
        signals = stack.enter_context(defer_signals())
        while step < total:
            if step % per_epoch == 0:
                program.set_learning_rate(learning_rate(config, step // per_epoch))
                if before_epoch is not None:
                    before_epoch(program, runs, step // per_epoch)
                program.shuffle()
            take_step()
            step += 1
            save = step == total or step % (config.checkpoint_every * per_epoch) == 0
            if config.checkpoint_steps is not None:
                save = save or step % config.checkpoint_steps == 0
            due = save or step % config.log_every == 0 or step % per_epoch == 0
            number = signals[0] if signals else None  # read once per step
            if devices.count > 1:
                # A signal to any process stops all processes at the next report.
                number = (max(devices.gather(number or 0)) or None) if due else None
            if due or number is not None:
                readings = program.readings()
                means = readings.values.mean(0).T.tolist()
                records = [dict(zip(readings.names, values, strict=True)) for values in means]
                for run, record in zip(written, records, strict=False):
                    run.log({"step": step, "epoch": step / per_epoch, **record})
                for writer, record in zip(events, records, strict=False):
                    for name, value in record.items():
                        writer.add_scalar(name, value, step)
                if progress is not None:
                    progress.update(step, records[0])
                _require_finite(readings, step)
            if save or number is not None:
                _save(program, runs, step)
            if number is not None:
                raise Interrupted(
                    number,
                    f"Stopped after step {step} and saved; "
                    f"run the same command again to resume ({runs[0].path}).",
                )


def _prepare(program: Program, steps: int) -> Callable[[], None]:
    """The step function for the configured mode; ``steps`` remain."""
    one_card = program.device.type == "cuda" and program.devices.count == 1
    mode: str = program.config.step
    if mode == "auto":
        long = steps >= WORTH_COMPILING
        mode = "eager" if not one_card else "compile" if long else "graph"
    if mode == "compile":
        compile_step(program)
    if mode == "graph" or (mode == "compile" and one_card):
        return CapturedStep(program)
    return program.step


def _require_finite(readings: Readings, step: int) -> None:
    broken = ~torch.isfinite(readings.values)
    if not broken.any():
        return
    row = int(broken.any(2).any(1).nonzero()[0])
    names = [name for name, bad in zip(readings.names, broken[row], strict=True) if bad.any()]
    # The loss is the sum of the other terms.
    terms = ", ".join(repr(name) for name in names if name != "loss") or "'loss'"
    first = step - len(broken) + row + 1
    raise RunError(f"Loss terms were not finite at step {first}: {terms}.")


def _save(program: Program, runs: Sequence[RunFolder], step: int) -> None:
    # A gradient can be infinite with a finite loss.
    for name, tensor in program.tensors().items():
        if not torch.isfinite(tensor).all():
            raise RunError(f"The parameter {name!r} was not finite after step {step}.")
    state = program.state()
    if program.devices.is_first:
        save_state(runs[0].checkpoint_dir, state, step, _names(runs))


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """The learning rate of an epoch."""
    return config.learning_rate * math.pow(config.learning_rate_decay, epoch // config.decay_every)


def _open_events(runs: Sequence[RunFolder], step: int) -> list[Any]:
    """TensorBoard writers of all runs; empty if ``tensorboard`` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return []
    # Purge later events, written by a killed process.
    return [SummaryWriter(run.path / EVENTS, purge_step=step + 1) for run in runs]


def train_stage(
    stage: str,
    models: Sequence[nn.Module],
    objective: Objective,
    config: TrainingConfig,
    runs: Sequence[RunFolder],
    data: Mapping[str, Tensor],
    *,
    devices: Devices,
    before_epoch: BeforeEpoch | None = None,
    progress: ProgressFactory = lambda stage: None,
    **options: Any,
) -> None:
    """Train models, or load them if their runs are finished.

    Args:
        stage: The name in the progress display.
        models: One or more models, trained together and in place.
        runs: The run of every model.
        options: Further arguments of :class:`~drpm.training.program.Program`.
    """
    if not all(run.status == "finished" for run in runs):
        program = Program(models, objective, data, config, devices=devices, **options)
        train(program, runs, before_epoch=before_epoch, progress=progress(stage))
    for model, run in zip(models, runs, strict=True):
        load_modules(run.model_dir, load_model(run.model_dir).tensors, {"": model})
        model.to(devices.device)


def fit_model(
    model: nn.Module,
    objective: Objective,
    config: Any,
    folder: Path | str,
    data: Mapping[str, Tensor],
    *,
    fingerprint: Callable[[], str],
    device: torch.device | str,
    stage: str = "training",
    is_eager: bool = False,
    **options: Any,
) -> RunFolder:
    """Train or resume one model of an application; raise if settings or data differ.

    The fingerprint of the data is not compared if the folder is itself a run, whose settings
    identify the data, because rounding may differ between devices. ``config`` has ``training`` and
    ``temperature`` (start, end); ``is_eager`` disables compilation and graph capture.
    """
    text, training, devices = dumps(config), config.training, Devices(device)
    if not (Path(folder) / CONFIG).exists():
        text = f'{FINGERPRINT} = "{fingerprint()}"\n{text}'
    run = open_run(Path(folder) / stage, text, devices=devices)
    if is_eager:
        training = replace(training, step="eager")
    steps = training.epochs * count_steps(len(next(iter(data.values()))), training)
    start, end = config.temperature
    schedules = {"temperature": ExponentialSchedule(start, end, max(1, steps))}
    options |= {"devices": devices, "schedules": schedules}
    train_stage("training", [model], objective, training, [run], data, **options)
    return run
