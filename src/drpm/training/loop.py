"""The training loop: the same for every model, data set and objective."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor, nn

from drpm.training.checkpoint import (
    load_latest,
    load_model,
    load_modules,
    save_model,
    save_state,
)
from drpm.training.compiling import CapturedStep, compile_step
from drpm.training.config import TrainingConfig
from drpm.training.devices import TRAINING_LOCK, Devices, matmul_precision
from drpm.training.errors import Interrupted, RunError, StopRequest
from drpm.training.program import Augmentation, Objective, Program, Readings, Schedule
from drpm.training.runs import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

# On a CUDA device "auto" compiles runs of at least this many steps: compiling takes up to a minute
# and saves up to 1.2 ms a step.
WORTH_COMPILING: Final = 30_000
# Lines of progress go to log files, where more would be noise.
_SECONDS_PER_LINE: Final = 10.0


@final
class TrainingProgress:
    """Steps, loss, steps per second and time left: a bar on a terminal, lines elsewhere.

    Args:
        console: A console of rich; by default the error stream.
    """

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
        text = f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"
        if "loss" in metrics:
            text = f"loss {metrics['loss']:.4g}, {text}"
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


ProgressFactory = Callable[[str], TrainingProgress | None]
"""From the name of a stage to its progress display."""


def train(
    program: Program,
    runs: Sequence[RunFolder],
    *,
    before_epoch: Callable[[int], None] | None = None,
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
    progress: TrainingProgress | None = None,
) -> list[dict[str, float]]:
    """Train from the last checkpoint, if any, to the last epoch, and finish the runs.

    The folders are locked and other threads wait meanwhile. With several devices all processes
    call this; the first one writes, evaluates and shows progress.

    Args:
        program: One run, or stacked runs.
        runs: One folder for each run; the first one holds the checkpoint.
        before_epoch: Called with the number of each epoch, from 0 on, before it starts. It may
            change the model in place, as a function of the model and the number alone: a resumed
            run calls it again.
        evaluate: From the index of a run to its final metrics, called after the last step. It may
            also save the model.
        progress: Receives every report. It must not wait for another thread that trains.

    Returns:
        The final metrics of each run.

    Raises:
        Interrupted: On SIGINT or SIGTERM, after the step is finished and saved.
        RunError: If a loss term is not finite.
    """
    if len(runs) != program.width:
        raise ValueError(
            f"runs must contain {program.width} folders, one for each run, but got {len(runs)}."
        )
    with TRAINING_LOCK, matmul_precision(program.config.matmul), ExitStack() as stack:
        if program.devices.is_first:
            for run in runs:
                stack.enter_context(run.lock())
        _Training(program, runs, progress, before_epoch).run()
        metrics: list[dict[str, float]] = []
        if program.devices.is_first:
            for index, run in enumerate(runs):
                metrics.append(dict(evaluate(index)) if evaluate else {})
                run.finish(metrics[index], device=program.device)
        return program.devices.gather(metrics)[0]


class _Training:
    """One call of :func:`train`."""

    def __init__(
        self,
        program: Program,
        runs: Sequence[RunFolder],
        progress: TrainingProgress | None,
        before_epoch: Callable[[int], None] | None,
    ) -> None:
        self.program, self.config = program, program.config
        self.before_epoch = before_epoch
        self.runs, self.checkpoints = runs, runs[0].checkpoint_dir
        self.names = [os.path.relpath(run.path, runs[0].path) for run in runs]
        self.writes = program.devices.is_first
        self.progress = progress if self.writes else None
        self.per_epoch = program.steps_per_epoch
        self.total = self.config.epochs * self.per_epoch
        self.step = self._resume()

    def _resume(self) -> int:
        saved, step = load_latest(self.checkpoints), 0
        if saved is None:
            # For dropout, which uses the default generator.
            torch.manual_seed(self.program.seed)
        else:
            # The models of a stack are in the checkpoint of its first run.
            if saved.runs != self.names:
                raise RunError(
                    f"The run in {self.runs[0].path} was started together with the runs "
                    f"{saved.runs} and cannot be resumed with {self.names}: give the same seeds "
                    "in the same order, or another folder."
                )
            self.program.load_state(saved.state)
            step = saved.step
        if self.writes:
            for run in self.runs:
                run.truncate_metrics(step)
        return step

    def run(self) -> None:
        if self.step >= self.total:
            return
        self.program.set_learning_rate(learning_rate(self.config, self.step // self.per_epoch))
        take_step = self._prepare()
        self.events = _open_events(self.runs, self.step) if self.writes else []
        if self.progress is not None:
            self.progress.start(self.total, self.step)
        try:
            with StopRequest() as stop:
                self._steps(take_step, stop)
        finally:
            for events in self.events:
                events.close()
            if self.progress is not None:
                self.progress.stop()

    def _prepare(self) -> Callable[[], None]:
        """The step in the configured form."""
        one_card = self.program.device.type == "cuda" and self.program.devices.count == 1
        way: str = self.config.step
        if way == "auto":
            long = self.total - self.step >= WORTH_COMPILING
            way = "eager" if not one_card else "compile" if long else "graph"
        if way == "compile":
            compile_step(self.program)
        if way == "graph" or (way == "compile" and one_card):
            return CapturedStep(self.program)
        return self.program.step

    def _steps(self, take_step: Callable[[], None], stop: StopRequest) -> None:
        config, program = self.config, self.program
        while self.step < self.total:
            if self.step % self.per_epoch == 0:
                epoch = self.step // self.per_epoch
                program.set_learning_rate(learning_rate(config, epoch))
                if self.before_epoch is not None:
                    self.before_epoch(epoch)
                program.shuffle()
            take_step()
            self.step += 1
            report = self.step % config.log_every == 0 or self.step % self.per_epoch == 0
            save = self._checkpoint_due()
            # Read once per step.
            signal = self._agree(stop.signal, report or save)
            if report or save or signal is not None:
                self._report(program.readings())
            if save or signal is not None:
                self._save()
            if signal is not None:
                raise Interrupted(signal, self.step, self.runs[0].path)

    def _agree(self, signal: int | None, together: bool) -> int | None:
        """A signal to any process stops all of them, at the next report."""
        if self.program.devices.count == 1:
            return signal
        return (max(self.program.devices.gather(signal or 0)) or None) if together else None

    def _checkpoint_due(self) -> bool:
        config, step = self.config, self.step
        if config.checkpoint_steps is not None and step % config.checkpoint_steps == 0:
            return True
        return step == self.total or step % (config.checkpoint_every * self.per_epoch) == 0

    def _report(self, readings: Readings) -> None:
        """Log a line for each run, and stop if a term is not finite."""
        means = readings.values.mean(0).T.tolist()
        records = [dict(zip(readings.names, values, strict=True)) for values in means]
        if self.writes:
            for run, record in zip(self.runs, records, strict=True):
                run.log({"step": self.step, "epoch": self.step / self.per_epoch, **record})
            for events, record in zip(self.events, records, strict=False):
                for name, value in record.items():
                    events.add_scalar(name, value, self.step)
            if self.progress is not None:
                self.progress.update(self.step, records[0])
        self._require_finite(readings)

    def _require_finite(self, readings: Readings) -> None:
        broken = ~torch.isfinite(readings.values)
        if not broken.any():
            return
        row = int(broken.any(2).any(1).nonzero()[0])
        names = [name for name, bad in zip(readings.names, broken[row], strict=True) if bad.any()]
        # The loss is the sum of the others.
        terms = ", ".join(repr(name) for name in names if name != "loss") or "'loss'"
        step = self.step - len(broken) + row + 1
        raise RunError(f"Some loss terms were not finite ({terms}) at step {step}.")

    def _save(self) -> None:
        # A gradient can be infinite although the loss is not.
        for name, tensor in self.program.tensors().items():
            if not torch.isfinite(tensor).all():
                raise RunError(f"The parameter {name!r} was not finite after step {self.step}.")
        state = self.program.state()
        if self.writes:
            save_state(self.checkpoints, state, self.step, self.names)


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """The learning rate of an epoch."""
    return config.learning_rate * math.pow(config.learning_rate_decay, epoch // config.decay_every)


def _open_events(runs: Sequence[RunFolder], step: int) -> list[Any]:
    """TensorBoard writers for all runs; none if ``tensorboard`` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return []
    # Later events are of a process that was killed.
    return [SummaryWriter(run.events_dir, purge_step=step + 1) for run in runs]


def train_stage(
    stage: str,
    models: Sequence[nn.Module],
    objective: Objective,
    config: TrainingConfig,
    runs: Sequence[RunFolder],
    data: Mapping[str, Tensor],
    *,
    seed: int,
    devices: Devices,
    run_data: Mapping[str, Tensor] | None = None,
    before_epoch: Callable[[Program], Callable[[int], None]] | None = None,
    progress: ProgressFactory = lambda stage: None,
    schedules: Mapping[str, Schedule] | None = None,
    augment: Augmentation | None = None,
) -> None:
    """Train models, or load them if their runs are finished.

    Args:
        stage: The name of this training in the models' folders.
        models: One model, or several to be trained together; they are trained in place.
        objective: What is minimized.
        config: Training settings.
        runs: The run of every model.
        data: Tensors of examples that all models share.
        seed: Determines batches and noise.
        devices: Where to train.
        run_data: Tensors of examples with a leading dimension, one entry per model.
        before_epoch: From the program to what :func:`train` calls before each epoch.
        progress: Makes the progress display.
        schedules: Schedules by the names that the objective looks up.
        augment: Applied to each batch before the objective.
    """
    if not all(run.status == "finished" for run in runs):
        config = replace(config, seed=seed)
        common: dict[str, Any] = {"schedules": schedules, "augment": augment, "devices": devices}
        program = Program(models, objective, data, config, run_data=run_data, **common)

        def save(index: int) -> dict[str, float]:
            save_model(runs[index].model_dir, program.model_state(index), {"stage": stage})
            return {}

        train(
            program,
            runs,
            before_epoch=None if before_epoch is None else before_epoch(program),
            evaluate=save,
            progress=progress(stage),
        )
    for model, run in zip(models, runs, strict=True):
        load_modules(run.model_dir, load_model(run.model_dir).tensors, {"": model})
        model.to(devices.device)
