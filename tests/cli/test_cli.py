"""The command line: help, version, completion, what it imports, and the study of the bounds."""

import errno
import json
import re
from pathlib import Path

import pytest

from drpm.cli import common
from drpm.data import own
from drpm.data.catalogue import DATASETS
from drpm.experiments import JOBS
from drpm.studies.sweeps import SWEEPS
from drpm.training import config as configs
from drpm.training.errors import memory_refusal
from tests.cli.commands import drpm, refusal
from tests.processes import ROOT, python

# Listed here, before an example adds a command of its own.
COMMANDS = ("bench", "bounds", "data", "explore", "predict", "report", "reproduce", *JOBS)


def test_version_and_help() -> None:
    assert re.match(r"drpm \S+", drpm("--version").output)
    text = drpm("--help").output
    for word in (*COMMANDS, "Exit codes: 0 success; 1 error"):
        assert word in text
    text = drpm("cluster", "--help").output
    assert all(suffix in text for suffix in own.SUFFIXES)


def test_bounds(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    command = ["bounds", "--out", out, "--draws=500", "--seed=3"]
    result = drpm(*command)
    document = json.loads((out / "bounds.json").read_text())
    assert (document["num_draws"], document["seed"]) == (500, 3)
    header, *rows = [line.split("\t") for line in result.stdout.splitlines()[:5]]
    assert [row[0] for row in rows][:2] == ["weights = 1, scores = 1", "weights ~ U, scores = 1"]
    assert {len(row) for row in rows} == {len(header)}
    shown = json.loads(drpm(*command, "--json").stdout)
    assert shown == {**document, "figure": str(out / "bounds.png")}


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    assert "─" in drpm("data", "list").stdout


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "none is left"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB. Process 1 has 1 GiB.\nMore"),
            "CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (OSError(errno.ENOENT, "No such file"), None),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_errors_of_memory_are_recognized(error: Exception, expected: str | None) -> None:
    assert memory_refusal(error) == expected


# Threads wait briefly, unless the user has said how, and output never fails on a character.
MAIN = """
import os, sys
sys.argv = ["drpm", "--version"]
import drpm.cli
try:
    drpm.cli.main()
except SystemExit:
    assert "torch" not in sys.modules  # whose threads read the variable when it is imported
    print(os.environ.get("GOMP_SPINCOUNT"), "±")
"""


@pytest.mark.parametrize(("policy", "found"), [(None, "3000"), ("ACTIVE", "None")])
def test_the_environment(policy: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(each, raising=False)
    given = {"OMP_WAIT_POLICY": policy} if policy else {}
    done = python("-c", MAIN, PYTHONIOENCODING="ascii", **given)
    assert done.stdout.splitlines()[-1] == f"{found} ?", done.stderr


# Help, completion and mistyped commands answer at once: torch is imported by what needs it. All
# of them run in one process, which is quick.
SLOW = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "lightning", "joblib", "ray")
ANSWERED = (
    *("--help", "--version", "bounds --help", "cluster --help", "data --help", "data show --help"),
    *("reproduce --help", "bound", "data show", "reproduce", "bounds --draws 0"),
    "explore --no-open --out /dev/null",
)
HELP = f"""
import sys
from typer.testing import CliRunner
import drpm.cli

for command in {ANSWERED}:
    result = CliRunner().invoke(drpm.cli.app, command.split())
    assert isinstance(result.exception, SystemExit | None), (command, result.exception)
    slow = set({SLOW}) & set(sys.modules)
    assert not slow, (command, slow)
"""


def test_help_and_refusals_do_without_torch() -> None:
    done = python("-c", HELP)
    assert done.returncode == 0, done.stderr


def test_words_are_all_there_are() -> None:
    assert common.complete_from(DATASETS)("m") == ["mnist", "mpi3d", "multimnist", "mosaic"]
    assert configs.preset_names("factors") == ["fast-factors", "paper-factors"]


def test_the_document_lists_all_sweeps() -> None:
    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", text, re.MULTILINE)
    found = {name: int(count) for name, count in rows}
    assert found == {name: len(list(make())) for name, make in SWEEPS.items()}


def test_a_shell_completes() -> None:
    words = {"COMP_WORDS": "drpm cluster --set training.ep", "COMP_CWORD": "3"}
    found = python("-m", "drpm", _DRPM_COMPLETE="complete_bash", **words)
    assert found.stdout.split() == ["training.epochs="]


def test_bench_passes_its_options_on(tmp_path: Path) -> None:
    # Where there is another program of that name.
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").write_text("raise SystemExit('the wrong one')")
    done = python("-m", "drpm", "bench", "--operations", "sing", cwd=tmp_path)
    assert done.returncode == 2
    assert "invalid choice: 'sing'" in done.stderr


def test_bench_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drpm.__file__", str(tmp_path / "lib" / "drpm" / "__init__.py"))
    assert "is not part of the installed package" in refusal("bench", "--quick")
