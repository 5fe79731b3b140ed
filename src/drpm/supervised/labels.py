"""Where a model puts every element, as a table."""

import csv
import io
from collections.abc import Sequence
from typing import Final, NamedTuple

from torch import Tensor

from drpm.supervised.fitted import JudgedBatches

LABELS: Final = "labels.csv"


class JudgedPart(NamedTuple):
    """A part of the data, and what a model makes of it.

    Arguments:
        name: Of the part.
        judged: Its batches in their subsets.
        labels: (N,), the classes of its elements.
        places: (N,), where they lie in what was read.
    """

    name: str
    judged: JudgedBatches
    labels: Tensor
    places: Tensor


def label_table(
    parts: Sequence[JudgedPart], names: Sequence[str], files: Sequence[str], *, whole: bool
) -> str:
    """A csv file with the class of every element and the class whose subset it was put into.

    Arguments:
        parts: The parts of the data.
        names: Those of the classes.
        files: That of every place, where elements have files.
        whole: Whether the parts were read as one whole, whose order the lines are then in.
    """
    lines = []
    for number, part in enumerate(parts):
        judged, order = part.judged, part.judged.order
        columns = (part.places[order], part.labels.cpu()[order], judged.subsets, judged.batch)
        for place, label, subset, batch in zip(*(x.tolist() for x in columns), strict=True):
            line = [part.name, place, names[label], names[subset], batch, *files[place : place + 1]]
            lines.append(((0 if whole else number, place), line))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["split", "index", "class", "subset", "batch"]
    writer.writerow([*header, "file"] if files else header)
    writer.writerows(line for _, line in sorted(lines, key=lambda pair: pair[0]))
    return text.getvalue()
