"""What the page of results says of shared factors: tables, and how many were found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from drpm.factors import published, sweeps
from drpm.factors.config import FactorsConfig
from drpm.factors.count_errors import draw_errors
from drpm.factors.job import LEAST_VARIANCE
from drpm.factors.verdicts import is_known, verdicts
from drpm.report.result_exhibits import exhibit_figures
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import (
    Place,
    Row,
    Table,
    read_runs,
    summary_of,
    table_text,
)
from drpm.report.style import png
from drpm.training import presets
from drpm.training.summaries import Summary, as_good, summarize
from drpm.training.words import joined

_EPOCH: Final = presets.load(FactorsConfig, sweeps.PRESET).steps_per_epoch
_STEPS: Final = _EPOCH * sweeps.EPOCHS
_CHOICE_STEPS: Final = _EPOCH * sweeps.CHOICE_EPOCHS
INTRODUCTION: Final = f"""\
## Shared factors

The paper's images are those of mpi3d; ours are those of `arm`, which has the same factors, so that
figures cannot be compared one by one, but what comes first can. Nor is training as long: the
sweep takes {_STEPS:,} steps, at a learning rate of {sweeps.RATE:g} and the last fifth of them at a
tenth of that, where the study that the paper follows takes 300,000 steps at 0.0001; whether as many
would change what comes first was not tried. Pairs are drawn anew at every step; those that models
are judged on, and settings chosen by, are further ones of the same images.
"""

METHODS: Final = {
    "label": "Label-VAE",
    "ada": "Ada-VAE",
    "hg": "HG-VAE",
    "drpm": "DRPM-VAE",
    "drpm-exact": "exact DRPM-VAE",
}
_Value = TypeVar("_Value")
_SWEEP: Final = "table-2"
_RATES_SWEEP: Final = "factor-rates"
_WEIGHTS_SWEEP: Final = "factor-weights"
# What settings are chosen by, and nothing that is known by labels.
_CRITERION: Final = "pair_evidence"


def tables() -> list[Table]:
    """The tables of the page, whatever there is to fill them with."""
    groups = [f"n_s = {shared}" for shared in sweeps.SHARED]
    places = {
        method: tuple(Place(_SWEEP, f"shared-{shared}", method) for shared in sweeps.SHARED)
        for method in METHODS
    }
    guests = [Row(name, places[method], is_guest=True) for method, name in METHODS.items()]
    return [
        Table(
            "Telling factors from the representation",
            "Table 2 of the paper (`table-2`): adjusted balanced accuracy of linear classifiers, "
            "from the shared part of the representation to the shared factors (S), and from the "
            "independent part to the others (I). Who shares nearly all dimensions has nearly the "
            "whole representation to tell the shared factors from, which helps in S and harms in "
            "I. The last row, with the mass of a partition itself instead of the paper's bounds on "
            "it, is not in the paper. "
            f"{_settings_told()}",
            "method",
            groups,
            [
                Row(
                    name,
                    places[method],
                    tuple(published.MAIN[method][shared] for shared in sweeps.SHARED)
                    if method in published.MAIN
                    else (),
                )
                for method, name in METHODS.items()
            ],
            {"shared_accuracy": "S", "independent_accuracy": "I"},
            is_comparable=False,
        ),
        Table(
            "How many factors are shared",
            "The number of dimensions taken as shared, on average, and its mean squared error; "
            "then how many of all ten are in use, which is to say with a variance of more than "
            f"{LEAST_VARIANCE:g} where the prior has 1, and how many of these are shared: what "
            "hardly varies is shared at no cost. The paper draws the errors and prints none of "
            "them. Whoever always takes half of all dimensions as shared, which the prior thinks "
            f"likeliest, has errors of {_errors_of_the_prior()}.",
            "method",
            groups,
            guests,
            {
                "mean_count": "number",
                "count_error": "error",
                "used_dimensions": "in use",
                "shared_used": "of these shared",
            },
        ),
        Table(
            "Disentanglement",
            "The usual scores of whole representations, which the paper does not have: DCI "
            "disentanglement and the mutual information gap (MIG).",
            "method",
            groups,
            guests,
            {"disentanglement": "DCI", "mutual_information_gap": "MIG"},
        ),
        _rates_table(),
        _weights_table(),
    ]


_EVIDENCE: Final = (
    "a lower bound of the log-probability of test pairs with all weights set to 1, in nats, "
    "for which no factor need be known"
)


def _rates_table() -> Table:
    return _choices_table(
        "Learning rates",
        f"Rates that stay as they are, pairs that share 0, 1, 3 or 5 factors, {_CHOICE_STEPS:,} "
        f"steps (`{_RATES_SWEEP}`), DRPM-VAE with gamma = delta = 0.25, what is shared counted for "
        f"each view: {_EVIDENCE}. Beside it the divergence of codes: with none of it they say "
        "nothing. What Ada-VAE shares, by a fixed rule, is taken as given.",
        "rate",
        {rate: f"{rate:g}" for rate in sweeps.RATES},
        sweeps.RATES_METHODS,
        _rate_place,
    )


def _weights_table() -> Table:
    return _choices_table(
        "Weights of the divergences",
        "HG-VAE with gamma and DRPM-VAE with delta of several sizes, for which the paper has none; "
        "the gamma of DRPM-VAE is its 0.25. Pairs share 0, 1, 3 or 5 factors, and training has "
        f"{_CHOICE_STEPS:,} steps, the last fifth at a tenth of the rate (`{_WEIGHTS_SWEEP}`). "
        f"Shown is {_EVIDENCE}, and the divergence of codes.",
        "weight",
        {weight: f"{weight:g}" for weight in sweeps.WEIGHTS},
        tuple(sweeps.WEIGHED),
        _weight_place,
    )


def _choices_table(
    title: str,
    about: str,
    head: str,
    values: Mapping[_Value, str],
    methods: Sequence[str],
    place: Callable[[str, _Value], Place],
) -> Table:
    """What is known of several values of a setting, method by method."""
    return Table(
        title,
        about,
        head,
        [METHODS[method] for method in methods],
        [
            Row(name, tuple(place(method, value) for method in methods))
            for value, name in values.items()
        ],
        {_CRITERION: "evidence", "latent_divergence": "codes"},
    )


def _rate_place(method: str, rate: float) -> Place:
    return Place(_RATES_SWEEP, *sweeps.rate_folder(method, rate).split("/"))


def _weight_place(method: str, weight: float) -> Place:
    return Place(_WEIGHTS_SWEEP, *sweeps.weight_folder(method, weight).split("/"))


def choose_rate(results: Path) -> float | None:
    """The learning rate of the largest evidence, averaged over methods; none before all were run.

    Arguments:
        results: The folder of finished studies.
    """
    places = {
        rate: [_rate_place(method, rate) for method in sweeps.RATES_METHODS]
        for rate in sweeps.RATES
    }
    means = _evidences(_rates_table(), results, places)
    return None if not means else max(means, key=lambda rate: means[rate].mean)


def choose_weight(results: Path, method: str) -> float | None:
    """The weight of the largest mean evidence; none before all of them were run.

    Arguments:
        results: The folder of finished studies.
        method: ``hg``, ``drpm`` or ``drpm-exact``.
    """
    means = _weighed(results, method)
    return None if not means else max(means, key=lambda weight: means[weight].mean)


def _weighed(results: Path, method: str) -> Mapping[float, Summary]:
    places = {weight: [_weight_place(method, weight)] for weight in sweeps.WEIGHTS}
    return _evidences(_weights_table(), results, places)


def _evidences(
    table: Table, results: Path, places: Mapping[_Value, Sequence[Place]]
) -> dict[_Value, Summary]:
    """The evidence of all candidates that have one; of none before all were run."""
    means = {}
    for candidate, studies in places.items():
        found = [[run[_CRITERION] for run in read_runs(table, results, x)] for x in studies]
        if any(len(values) < len(sweeps.CHOICE_SEEDS) for values in found):
            return {}
        values = [value for study in found for value in study if value is not None]
        # One that came to nothing for some seed is none to choose.
        if len(values) == sum(map(len, found)):
            means[candidate] = summarize(values)
    return means


def factors_sections(results: Path) -> Iterator[Section]:
    """The part of the page on shared factors.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    for table in tables():
        sentences = [*_chosen(table, results), *verdicts(table, results)]
        text = table_text(table, results)
        if sentences:
            text = f"{text.rstrip()}\n\n{' '.join(sentences)}\n"
        yield Section(text, tuple(_figures(table, results)))


def _figures(table: Table, results: Path) -> Iterator[ResultFigure]:
    if "shared_accuracy" in table.metrics:
        # The most that pairs share: of less there is little to see.
        most = sweeps.SHARED[-1]
        study = results / _SWEEP / f"shared-{most}" / "drpm"
        for exhibit in ("pairs", "traversals"):
            whose = f"{METHODS['drpm']}, n_s = {most}"
            yield from exhibit_figures(study, exhibit, f"{_SWEEP}-{exhibit}.png", whose)
    if "count_error" in table.metrics:
        yield from _error_figure(table, results)


def _chosen(table: Table, results: Path) -> Iterator[str]:
    """What a table of candidates says, as soon as all of them were run."""
    if table == _rates_table() and (rate := choose_rate(results)) is not None:
        near = _as_good_rates(rate, results)
        yield f"The largest evidence: {rate:g} on average over both methods{near}."
    if table == _weights_table():
        told = []
        for method in sweeps.WEIGHED:
            if (best := choose_weight(results, method)) is not None:
                near = _told(as_good(best, _weighed(results, method)))
                told.append(f"{best:g} for {METHODS[method]}{_at_an_end(best)}{near}")
        if told:
            yield f"The largest evidence: {'; '.join(told)}."


def _at_an_end(best: float) -> str:
    """Whether there is more to try."""
    ends = {sweeps.WEIGHTS[0]: "smallest", sweeps.WEIGHTS[-1]: "largest"}
    return f", the {ends[best]} that was tried" if best in ends else ""


def _as_good_rates(best: float, results: Path) -> str:
    """What lies within a deviation of the best for each method, by itself: their evidences differ
    from one another by more than rates make of them."""
    near = set(sweeps.RATES)
    for method in sweeps.RATES_METHODS:
        places = {rate: [_rate_place(method, rate)] for rate in sweeps.RATES}
        tied = as_good(best, _evidences(_rates_table(), results, places))
        near &= set(tied)
    return _told(sorted(near))


def _told(near: Sequence[float]) -> str:
    numbers = ", ".join(f"{value:g}" for value in near)
    return f" (as good within its deviation: {numbers})" if near else ""


def _settings_told() -> str:
    """What was chosen for the table, in words."""
    told = [
        f"{METHODS[method]} has {sweeps.WEIGHED[method]} = {weight:g}"
        for method, weight in sweeps.CHOSEN.items()
    ]
    constant = presets.load(FactorsConfig, sweeps.PRESET).smallest_divergence
    return (
        f"{'; '.join(told)}; the weights of the prior are equal, and were not varied. The "
        "divergence of a shared dimension counts once for all methods, as in the paper's formula, "
        "where the study that Ada-VAE comes from counts it for each view. DRPM-VAE orders "
        f"dimensions by the logarithm of the divergence of both views plus {constant:g}, where the "
        "paper adds nothing. This constant, and that the rate falls, were chosen by the evidence "
        "of a few short trainings that were not kept."
    )


def _errors_of_the_prior() -> str:
    half = presets.load(FactorsConfig, sweeps.PRESET).latent // 2
    return joined([str((half - shared) ** 2) for shared in sweeps.SHARED])


def _error_figure(table: Table, results: Path) -> Iterator[ResultFigure]:
    """The paper's figure, as soon as all that belongs in it was run."""
    metric = "count_error"
    found = {
        row.name: [read_runs(table, results, place) for place in row.places] for row in table.rows
    }
    whole = {
        name: [summary_of(runs, metric) for runs in studies]
        for name, studies in found.items()
        if all(is_known(runs, metric) for runs in studies)
    }
    if whole.keys() >= {METHODS[method] for method in published.MAIN}:
        caption = "error of the number of shared factors, by how many there are"
        draw = partial(_draw, whole, table.groups)
        yield ResultFigure("table-2-count-error.png", "The paper's figure", caption, draw)


def _draw(errors: Mapping[str, Sequence[Summary]], groups: Sequence[str]) -> bytes:
    return png(draw_errors(errors, groups, "Mean squared error of the number of shared factors"))
