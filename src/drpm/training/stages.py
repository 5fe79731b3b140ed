"""Training models from folders to folders: what every application does.

One model is trained alone, several together; folders that were cut off are gone on with, and
finished ones are read.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.loop import Progress, train
from drpm.training.program import Augmentation, BaseProgram, Objective, Program
from drpm.training.runs import CONFIG, FINGERPRINT, RunFolder
from drpm.training.schedules import Schedule
from drpm.training.stacking import StackedProgram

ProgressFactory = Callable[[str], Progress | None]


def open_run(
    path: Path,
    text: str,
    *,
    overwrite: bool = False,
    made: Sequence[str] = (),
    devices: Devices | None = None,
) -> RunFolder:
    """The folder of a run, new if there is none; one with other settings is refused.

    Arguments:
        path: The folder.
        text: All settings that the run depends on; they have to be what it was begun with.
        overwrite: Whether to begin anew where there is one.
        made: Files and folders that the run leaves besides those that every run has.
        devices: With several, all processes call this and the first one makes the folder.
    """
    devices = devices or Devices()
    if devices.is_first:
        if not (path / CONFIG).exists():
            RunFolder.create(path, text)
        elif overwrite:
            _clear(RunFolder.open(path), made)
            RunFolder.create(path, text, overwrite=True)
    devices.barrier()
    run = RunFolder.open(path)
    run.require_settings(text)
    return run


def open_stage(
    folder: Path | str, stage: str, text: str, *, fingerprint: Callable[[], str], devices: Devices
) -> RunFolder:
    """The folder of a training in that of a whole run; one with other settings or data is refused.

    A folder with settings of its own, such as a job's, says there which data it is of, and data
    made anew on another device may differ in the last digit: its stages are not compared by data.

    Arguments:
        folder: That of the run.
        stage: Where in it.
        text: All settings that the stage depends on, but for the data.
        fingerprint: Tells what the data is known by, which takes a while for much of it.
        devices: With several, all processes call this and the first one makes the folder.
    """
    if not (Path(folder) / CONFIG).exists():
        text = f'{FINGERPRINT} = "{fingerprint()}"\n{text}'
    return open_run(Path(folder) / stage, text, devices=devices)


@contextmanager
def hold_runs(runs: Iterable[RunFolder]) -> Iterator[None]:
    """Keep others out of the folders of runs that are done together, and start their clocks."""
    with ExitStack() as held:
        for run in runs:
            held.enter_context(run.lock())
            _ = run.wall_time
        yield


def _clear(run: RunFolder, made: Sequence[str]) -> None:
    # The result first and the settings last: killed in between, this is no finished run, and never
    # one that goes on with the stages of another.
    with run.lock():
        run.result_path.unlink(missing_ok=True)
        for name in made:
            path = run.path / name
            aside = path.with_name(f".{name}.tmp")
            if aside.exists():  # left behind by one that was killed here
                shutil.rmtree(aside)
            if path.is_dir() and not path.is_symlink():
                # Out of the way first: half of a finished stage would pass for all of it.
                path.rename(aside)
                shutil.rmtree(aside)
            else:
                path.unlink(missing_ok=True)


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
    schedules: Mapping[str, Schedule] | None = None,
    augment: Augmentation | None = None,
    before_epoch: Callable[[BaseProgram], Callable[[int], None]] | None = None,
    progress: ProgressFactory = lambda stage: None,
) -> None:
    """Train models, unless their folders hold them finished already.

    Arguments:
        stage: What this is called in the models' folders.
        models: One, or several to be trained together; they end up trained.
        objective: What is minimised.
        config: How.
        runs: The folder of every model.
        data: Tensors of examples that all models see.
        seed: Settles batches and noise.
        devices: Where.
        run_data: Tensors of examples with a leading axis, one entry a model.
        schedules: Numbers that change with the step.
        augment: What is done to a batch before the objective sees it.
        before_epoch: From the program to what is called before its epochs.
        progress: From the name of a stage that begins to whoever shows how far it is.
    """
    if not all(run.status == "finished" for run in runs):
        config = replace(config, seed=seed)
        program: BaseProgram
        if len(models) == 1:
            program = Program(
                models[0],
                objective,
                data,
                config,
                schedules=schedules,
                augment=augment,
                devices=devices,
            )
        else:
            program = StackedProgram(
                models,
                objective,
                data,
                config,
                run_data=run_data,
                schedules=schedules,
                augment=augment,
                devices=devices,
            )

        def evaluate(index: int) -> dict[str, float]:
            save_model(runs[index].model_dir, program.model_state(index), {"stage": stage})
            return {}

        train(
            program,
            runs,
            before_epoch=None if before_epoch is None else before_epoch(program),
            evaluate=evaluate,
            progress=progress(stage),
        )
    for model, run in zip(models, runs, strict=True):
        load_modules(run.model_dir, load_model(run.model_dir).tensors, {"": model})
        model.to(devices.device)
