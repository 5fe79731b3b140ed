"""The results that are published: made with the settings of today, by sweeps of today."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from drpm.cli.reproduce import SOURCES
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.sweeps import SWEEPS, SweepRun

RESULTS = Path(__file__).parents[1] / "results"


def studies() -> Iterator[tuple[str, SweepRun]]:
    for module in SOURCES:
        import_module(module)
    for name, make in SWEEPS.items():
        if make.__module__ in SOURCES:
            for run in make().runs:
                yield name, run


STUDIES = {f"{name}/{run.folder}": run for name, run in studies()}
PUBLISHED = [
    name for name, run in STUDIES.items() if "preset" in run.arguments and (RESULTS / name).exists()
]


def application_of(run: SweepRun) -> str:
    """``clustering`` of ``drpm.clustering.study:run_study``."""
    return str(run.job).split(".")[1]


def settings_of(run: SweepRun) -> Any:
    """What a study of today is trained with."""
    application = application_of(run)
    module = import_module(f"drpm.{application}.config")
    arguments = run.arguments
    changes = list(arguments.get("settings", ()))
    changes += [f"method={arguments['method']}"] if "method" in arguments else []
    kind = getattr(module, f"{application.capitalize()}Config")
    return configs.override(presets.load(kind, arguments["preset"]), changes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_those_of_today(name: str) -> None:
    run = STUDIES[name]
    application, expected = application_of(run), settings_of(run)
    job_kind = import_module(f"drpm.{application}.job").Job
    runs = sorted((RESULTS / name).rglob("seed-*/config.toml"))
    ratios = run.arguments.get("noise", [None])
    assert len(runs) == len(run.arguments["seeds"]) * len(ratios)
    assert (RESULTS / name / "result.json").exists()
    for path in runs:
        job = configs.loads(job_kind, path.read_text(encoding="utf-8"))
        seed = int(path.parent.name.removeprefix("seed-"))
        training = replace(expected.training, seed=seed)
        assert getattr(job, application) == replace(expected, training=training), path
        for known in ("data", "shared", "tasks"):
            if known in run.arguments:
                assert getattr(job, known) == run.arguments[known], path
        assert getattr(job, "noise", None) in ratios, path
        assert (path.parent / "result.json").exists()


def test_every_run_belongs_to_a_study() -> None:
    found = list(RESULTS.rglob("result.json"))
    assert found
    for path in found:
        parts = path.relative_to(RESULTS).parts
        assert any("/".join(parts[:depth]) in STUDIES for depth in range(1, len(parts))), path
