"""What a training step takes, as the page of results tells it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from drpm.report.result_page import Section
from drpm.report.result_tables import head_lines, line
from drpm.training.errors import RunError

# What `python -m benchmarks.loop --out` wrote on one GPU.
_FILE: Final = Path("benchmarks", "loop-h200.json")
_HEAD: Final = ("model", "batch", "one run, µs", "five stacked, µs", "ratio")
# From a network without its partition to the same with it.
_SPLIT: Final = {
    "multitask LeNet": "multitask LeNet, split",
    "ULS": "DRPM-MTL",
    "ULS, 40 tasks": "DRPM-MTL, 40 tasks",
}


def step_sections(results: Path) -> Iterator[Section]:
    """The part of the page on training steps; nothing where they were not measured.

    Arguments:
        results: The folder of results.
    """
    path = results / _FILE
    if not path.exists():
        return
    try:
        content = json.loads(path.read_bytes())
        steps = [x for x in content["steps"] if (x["step"], x["matmul"]) == ("compile", "high")]
        text = "\n".join(_lines(content["environment"], steps))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"The file {path} is not what benchmarks.loop writes.") from error
    yield Section(text)


def _lines(environment: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> Iterator[str]:
    where = f"{environment['device_name']}, torch {environment['torch']}"
    if revision := environment.get("git_revision"):
        where += f", at revision {revision[:7]}"
    yield from ("## Training steps", "")
    yield (
        f"Compiled and captured steps on one {where}, with TF32 products, by "
        "`python -m benchmarks.loop`: one run, and five that differ in their seeds stacked in one "
        "program. The clustering VAE and the LeNets of two tasks are plain models of the sizes of "
        "the paper's; the empty model is one number, and what its step takes, every step does."
    )
    yield from ("", *head_lines(_HEAD))
    for step in steps:
        stacked = step["stacked"]
        cells = [step["model"], str(step["batch_size"]), _microseconds(step["alone"])]
        cells += ["-", "-"] if stacked is None else [_microseconds(stacked), f"{step['ratio']:.2f}"]
        yield line(cells)
    yield ""
    alone = {step["model"]: step["alone"] for step in steps}
    told = [
        f"{split} takes {alone[split] / alone[whole] - 1:.0%} longer than {whole}"
        for whole, split in _SPLIT.items()
        if whole in alone and split in alone
    ]
    if told:
        yield (
            f"What splitting the neurons costs: {'; '.join(told)}. The split LeNet predicts the "
            "partition of every image from its own features, DRPM-MTL by a second encoder; with 40 "
            "tasks it learns one for all images."
        )


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"
