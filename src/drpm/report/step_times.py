"""What a training step takes, as the page of results tells it."""

import json
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from drpm.report.result_page import Section
from drpm.report.result_tables import head_lines, line, short_revision
from drpm.training.errors import RunError

# What `python -m benchmarks.loop --out` wrote on GPUs of one kind. Of two measurements of a model
# the later counts.
_FILES: Final = "benchmarks/loop-h200*.json"
_HEAD: Final = ("model", "batch", "one run, µs", "five stacked, µs", "ratio", "revision")
# From a network without its partition to the same with it.
_SPLIT: Final = {
    "multitask LeNet": "multitask LeNet, split",
    "ULS": "DRPM-MTL",
    "ULS, 40 tasks": "DRPM-MTL, 40 tasks",
}


class _Step(NamedTuple):
    """A row of the table, and where it was measured."""

    batch_size: int
    alone: float
    stacked: float | None
    place: str
    revision: str


def step_sections(results: Path) -> Iterator[Section]:
    """The part of the page on training steps; nothing where they were not measured.

    Arguments:
        results: The folder of results.
    """
    dated: list[tuple[str, dict[str, _Step]]] = []
    for path in sorted(results.glob(_FILES)):
        try:
            content = json.loads(path.read_bytes())
            dated.append((content["environment"]["date"], _read(content)))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"The file {path} is not what benchmarks.loop writes.") from error
    steps: dict[str, _Step] = {}
    for _, found in sorted(dated, key=itemgetter(0)):
        steps.update(found)
    if steps:
        yield Section("\n".join(_lines(steps)))


def _read(content: Mapping[str, Any]) -> dict[str, _Step]:
    """The compiled steps of a file, by model."""
    environment = content["environment"]
    place = f"{environment['device_name']}, torch {environment['torch']}"
    revision = short_revision(environment.get("git_revision")) or "-"
    return {
        step["model"]: _Step(step["batch_size"], step["alone"], step["stacked"], place, revision)
        for step in content["steps"]
        if (step["step"], step["matmul"]) == ("compile", "high")
    }


def _lines(steps: Mapping[str, _Step]) -> Iterator[str]:
    places = " or ".join(dict.fromkeys(step.place for step in steps.values()))
    yield from ("## Training steps", "")
    yield (
        f"Compiled and captured steps on one {places}, with TF32 products, by "
        "`python -m benchmarks.loop`: one run, and five that differ in their seeds stacked in one "
        "program. The clustering VAE and the LeNets of two tasks are plain models of the sizes of "
        "the paper's; the empty model is one number, and what its step takes, every step does."
    )
    yield from ("", *head_lines(_HEAD))
    for model, step in steps.items():
        cells = [model, str(step.batch_size), _microseconds(step.alone)]
        if step.stacked is None:
            cells += ["-", "-"]
        else:
            cells += [_microseconds(step.stacked), f"{step.stacked / step.alone:.2f}"]
        yield line([*cells, step.revision])
    yield ""
    told = [
        f"{split} takes {_longer(steps[split], steps[whole])} longer than {whole}"
        for whole, split in _SPLIT.items()
        if whole in steps and split in steps and steps[whole].revision == steps[split].revision
    ]
    if told:
        yield (
            f"What splitting the neurons costs: {'; '.join(told)}. The split LeNet predicts the "
            "partition of every image from its own features, DRPM-MTL by a second encoder; with 40 "
            "tasks it learns one for all images, here without the penalty on sizes that differ, "
            "and makes it beside the features where one run is trained alone."
        )


def _longer(split: _Step, whole: _Step) -> str:
    """How much longer one step takes than another."""
    told = f"{split.alone / whole.alone - 1:.0%}"
    if split.stacked is not None and whole.stacked is not None:
        told += f" (stacked {split.stacked / whole.stacked - 1:.0%})"
    return told


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"
