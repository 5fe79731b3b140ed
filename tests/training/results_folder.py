"""Finished studies as a folder of results holds them, without having been run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSIONS = {"python": "3.11.7", "torch": "2.9.0", "drpm": "0.1.0", "numpy": "2.0.0"}


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_variant(folder: Path, accuracies: Sequence[float], hours: float = 1.0) -> None:
    """The runs of a variant, one for each accuracy; the other scores follow from it."""
    facts = {"wall_time": 3600 * hours, "device": "cuda:0 (Some card)", "versions": VERSIONS}
    for seed, accuracy in enumerate(accuracies):
        run = folder / f"seed-{seed}"
        metrics = {"nmi": accuracy - 0.1, "ari": accuracy - 0.2, "accuracy": accuracy}
        write_json(run / "result.json", {"metrics": metrics, "seed": seed, **facts})
        (run / "config.toml").write_text(f"seed = {seed}\n", encoding="utf-8")


def write_study(folder: Path, variants: Mapping[str, Sequence[float]], hours: float = 1.0) -> None:
    """Finished studies, one for each variant."""
    for name, accuracies in variants.items():
        write_variant(folder / name, accuracies, hours)
        facts = {"wall_time": 3600 * hours, "device": "cuda:0 (Some card)", "versions": VERSIONS}
        write_json(folder / name / "result.json", facts)
