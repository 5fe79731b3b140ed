"""``drpm bench``: the checkout's own program, or one sentence where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drpm.cli import app
from drpm.cli import bench as command

ROOT = Path(__file__).parents[2]


def test_the_program_gets_its_options(tmp_path: Path) -> None:
    # Where there is a program of that name, but another one.
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").write_text("raise SystemExit('the wrong one')")
    words = "bench --quick --device cpu --sizes 8 --groups 2 --operations log_prob --out here"
    # From a shell, because it starts processes that would stay with this one.
    done = subprocess.run(
        [sys.executable, "-m", "drpm", *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "here/results.json" in done.stdout
    document = json.loads((tmp_path / "here" / "results.json").read_text())
    assert all(each["seconds"] > 0 for each in document["measurements"])


def test_its_help_is_the_programs() -> None:
    before = dict(os.environ), [*sys.path]
    result = CliRunner().invoke(app, ["bench", "--help"])
    assert result.exit_code == 0
    assert (dict(os.environ), sys.path) == before
    assert result.stdout.startswith("usage: drpm bench")
    assert "--training" in result.stdout


def test_without_a_checkout_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.drpm, "__file__", str(tmp_path / "lib" / "drpm" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "--quick"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: The benchmark program comes with the source checkout and not with the installed "
        "package: get the source, and run drpm bench in its folder.\n"
    )
    # With another installation, but in the checkout.
    monkeypatch.chdir(ROOT)
    assert command.checkout() == ROOT
