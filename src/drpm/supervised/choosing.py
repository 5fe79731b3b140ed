"""How the weight of the size term was chosen, in a sentence."""

from collections.abc import Mapping
from typing import Any

from drpm.report.result_tables import shown
from drpm.training.summaries import as_good, summarize


def describe_choice(selection: Mapping[str, Any]) -> str:
    """What was tried, and what was kept; nothing where there was nothing to choose.

    Arguments:
        selection: As a run's ``result.json`` has it: the weight that was kept as ``size_weight``,
            how many elements were ``held_out``, and ``scores``, an ``f1`` for every ``size_weight``
            and seed.
    """
    found: dict[float, list[float]] = {}
    for row in selection["scores"]:
        found.setdefault(row["size_weight"], []).append(row["f1"])
    if len(found) < 2:
        return ""
    means = {weight: summarize(values) for weight, values in sorted(found.items())}
    kept = selection["size_weight"]
    tried = ", ".join(f"{shown(mean, 4)} with {weight:g}" for weight, mean in means.items())
    told = (
        f"The weight of the size term is {kept:g}, chosen by the F1 score on "
        f"{selection['held_out']:,} elements of the training part that nothing was learnt from: "
        f"{tried}."
    )
    near = [f"{x:g}" for x in as_good(kept, means)]
    if near:
        told += f" As good within its deviation: {', '.join(near)}."
    if kept == min(means) and kept > 0:
        told += " It is the smallest that was tried; a smaller one might be better."
    if kept == max(means):
        told += " It is the largest that was tried; a larger one might be better."
    return told
