"""The clusters of a run on its page: what was found, a table of clusters, and a map of the codes.

They come from the arrays of :mod:`drpm.report.plots` and from ``labels.csv``, the cluster of every
example and its probability.
"""

from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from drpm.report.plots import Arrays, format_value, names_of, to_pixels
from drpm.training.runs import LABELS

_WIDTH: Final = 1000  # or height of the map, in units of its own
_COLUMNS: Final = 12  # of a table, shown for a point
_APART: Final = 3  # columns that describe a cluster


def describe_clusters(folder: Path, arrays: Arrays) -> dict[str, Any]:
    """What the page shows of a clustering: ``found``, ``clusters`` and ``map``; or nothing."""
    if "sizes" not in arrays:
        return {}
    clusters = arrays["latent_clusters"]
    labels = pd.DataFrame({"split": "", "index": range(len(clusters)), "cluster": clusters})
    if (folder / LABELS).exists():
        labels = pd.read_csv(folder / LABELS, keep_default_na=False)
    trained, tested = (labels[labels["split"] == labels["split"].iloc[i]] for i in (0, -1))
    sizes = arrays["sizes"]
    found: dict[str, Any] = {"clusters": len(sizes), "examples": int(sizes.sum())}
    found["examples per cluster"] = f"{sizes.min():,} to {sizes.max():,}"
    table = pd.DataFrame({"examples": sizes, "share": [f"{x:.1%}" for x in sizes / sizes.sum()]})
    if "confidence" in labels:
        found["mean confidence"] = trained["confidence"].mean().item()
        found["with confidence below 0.5"] = f"{(trained['confidence'] < 0.5).mean():.1%}"
        table["mean confidence"] = trained.groupby("cluster")["confidence"].mean()
    if (counts := arrays.get("confusion")) is not None:
        names = np.array(names_of(arrays, "label_names"))[counts.argmax(0)]
        shares = counts.max(0) / np.maximum(counts.sum(0), 1)
        pairs = zip(names, shares, strict=True)
        table["most common label"] = [f"{x} ({share:.0%})" if share else None for x, share in pairs]
    if "column_means" in arrays:
        table["set apart by"] = distinguishing_columns(arrays)
    return {"found": found, "clusters": table.to_dict("index"), "map": _code_map(arrays, tested)}


def distinguishing_columns(arrays: Arrays) -> list[list[str]]:
    """The columns in which the mean of each cluster differs most from that of the others.

    Differences are in standard deviations of the column.
    """
    sizes, means = arrays["sizes"][:, None].astype(np.float64), arrays["column_means"]
    sums, others = sizes * means, sizes.sum() - sizes
    rest = (sums.sum(0) - sums) / np.maximum(others, 1)
    # A cluster that is empty, or the only one, does not differ.
    differences = np.where(sizes * others > 0, _in_deviations(arrays, means - rest), 0)
    names, overall = names_of(arrays, "column_names", means.shape[1]), sums.sum(0) / sizes.sum()
    return [
        [
            f"{names[i]} {'↑' if change[i] > 0 else '↓'} "
            f"{format_value(mean[i].item())} ({format_value(overall[i].item())})"
            for i in np.argsort(-np.abs(change), kind="stable")[:_APART]
            if change[i]
        ]
        for mean, change in zip(means, differences, strict=True)
    ]


def _in_deviations(arrays: Arrays, values: NDArray[Any]) -> NDArray[np.float64]:
    deviations = arrays["column_deviations"]
    return values / np.where(deviations > 0, deviations, np.inf)


def _code_map(arrays: Arrays, labels: pd.DataFrame) -> dict[str, Any]:
    """Points in the plane with their groups, and what the page tells about each of them."""
    examples = arrays.get("examples", np.empty((len(arrays["latent"]), 0)))
    count, codes = len(examples), np.nan_to_num(arrays["latent"]) * (1, -1)
    # The units of an embedding mean nothing; equal distances must look equal.
    places = codes[:count] * _WIDTH / max(np.ptp(codes[:count], axis=0).max(), 1e-9)
    points = pd.DataFrame(places.round().astype(int), columns=["x", "y"])
    facts = labels.drop(columns="split").rename(columns={"index": "example"})[:count]
    facts = facts.reset_index(drop=True)
    points["cluster"] = facts["cluster"]
    names = {"cluster": [*map(str, range(len(arrays["sizes"])))]}
    if "confusion" in arrays:
        points["label"] = arrays["latent_labels"][:count]
        names["label"] = [*names_of(arrays, "label_names")]
        facts["label"] = [names["label"][x] if x >= 0 else None for x in points["label"]]
    if "column_means" in arrays:
        spread = _in_deviations(arrays, arrays["column_means"]).std(0)
        shown = np.sort(np.argsort(-spread, kind="stable")[:_COLUMNS])
        columns = np.array(names_of(arrays, "column_names", len(spread)))[shown]
        facts = pd.concat([facts, pd.DataFrame(examples[:, shown], columns=columns)], axis=1)
    # In a random but fixed order, so that no group lies on top because it comes last.
    order = np.random.default_rng(0).permutation(count)
    return {
        "points": points.iloc[order].to_dict("records"),
        "total": len(codes),
        "names": names,
        "middles": {
            kind: points.groupby(kind)[["x", "y"]].median().round().to_dict("index")
            for kind in names
        },
        "facts": {
            "names": [*facts],
            "rows": facts.iloc[order].map(format_value).to_numpy().tolist(),
        },
        "sprite": _sprite(to_pixels(examples[order])) if examples.ndim > 2 else None,
    }


def _sprite(pixels: NDArray[np.float32]) -> dict[str, Any]:
    """All images (N, H, W, channels) in one file, row by row."""
    count, height, width, channels = pixels.shape
    across = ceil(count**0.5)
    down = ceil(count / across)
    canvas = np.zeros((down * across, height, width, channels), np.uint8)
    canvas[:count] = (255 * pixels).round()
    canvas = canvas.reshape(down, across, height, width, channels).transpose(0, 2, 1, 3, 4)
    picture = Image.fromarray(canvas.reshape(down * height, across * width, channels).squeeze())
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    return {"png": content.getvalue(), "across": across, "down": down, "ratio": width / height}
