"""What the page of results says of supervised partitions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from drpm.report.result_exhibits import exhibit_figures
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import Figure, Place, Row, Scores, Table, seed_folders, table_text
from drpm.supervised import sweeps
from drpm.supervised.choosing import describe_choice
from drpm.supervised.config import SupervisedConfig
from drpm.training import presets
from drpm.training.runs import RunFolder

INTRODUCTION: Final = """\
## Supervised partitions

A network is taught to split batches of 256 images into their classes.
"""

NAMES: Final = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}

# In a sentence of the appendix.
PUBLISHED: Final[dict[str, Scores]] = {
    "mnist": {"f1": Figure(0.9643, 0.0002)},
    "fashion-mnist": {"f1": Figure(0.8271, 0.0003)},
}


def scores_table() -> Table:
    """The scores on both data sets."""
    # The same in both presets.
    preset = sweeps.supervised().runs[0].arguments["preset"]
    temperature = presets.load(SupervisedConfig, preset).prediction_temperature
    return Table(
        "Batches split into their classes",
        "Macro F1 of the hard partition with predicted sizes, over shuffled batches of the test "
        "part (`supervised`), and how far a predicted size is from the true one on average. The "
        "weight of the size term was chosen on a tenth of the training part. Partitions are "
        f"predicted at a low temperature, {temperature}; at zero, which is the argmin that the "
        "paper takes scores from, they go by what the network says of every element by itself.",
        "method",
        [NAMES[data] for data in sweeps.DATA],
        [
            Row(
                "DRPM",
                tuple(Place("supervised", data, "drpm") for data in sweeps.DATA),
                tuple(PUBLISHED[data] for data in sweeps.DATA),
            )
        ],
        {"f1": "F1", "size_error": "size error"},
        paper_seeds=None,
        paper_digits=4,
    )


def supervised_sections(results: Path) -> Iterator[Section]:
    """The part of the page on supervised partitions.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    text = "\n".join([table_text(scores_table(), results), *_choices(results)])
    yield Section(text, tuple(_figures(results)))


def _figures(results: Path) -> Iterator[ResultFigure]:
    """A batch of each data set."""
    for data in sweeps.DATA:
        study = results / "supervised" / data / "drpm"
        yield from exhibit_figures(study, "subsets", f"supervised-{data}.png", NAMES[data])


def _choices(results: Path) -> Iterator[str]:
    """What was judged, and how the weight of the size term was chosen, as soon as that was done."""
    for data in sweeps.DATA:
        folders = map(RunFolder, seed_folders(results / "supervised" / data / "drpm"))
        finished = (run for run in folders if run.status == "finished")
        # All seeds were tried together, so that any of them knows.
        if (run := next(finished, None)) is not None:
            result = run.result()
            told = []
            if (judged := result.get("data")) is not None:
                told.append(
                    f"{judged['test batches']} test batches of {judged['test batch size']} images."
                )
            if (selection := result.get("selection")) is not None:
                told.append(describe_choice(selection))
            if shown := " ".join(filter(None, told)):
                yield f"- {NAMES[data]}. {shown}"
