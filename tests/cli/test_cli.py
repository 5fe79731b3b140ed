"""The command line: what it prints and what it writes."""

import json
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from drpm.cli import app


def run(*arguments: str) -> Result:
    # Wide enough that no message is wrapped in the middle of what a test looks for.
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.match(r"drpm \S+", result.output)


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("bench", "bounds", "data", "reproduce"):
        assert command in result.output
    assert "Exit codes: 0 done; 1 refused" in result.output


def test_bounds_writes_the_study_and_ends_with_the_pictures(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = run("bounds", "--out", str(out), "--draws", "500", "--seed", "3")
    assert result.exit_code == 0, result.output
    document = json.loads((out / "bounds.json").read_text())
    assert (document["num_draws"], document["seed"]) == (500, 3)
    pictures = sorted(out.glob("*.png"))
    assert len(pictures) == 5
    ending = result.output.partition("Pictures:")[2]
    assert sorted(ending.split()) == [str(picture) for picture in pictures]
    for setting in ("ω = 1, s = 1", "ω ~ U, s = 1", "ω = 1, s ~ U", "ω ~ U, s ~ U"):
        assert setting in result.output


def test_bounds_as_json(tmp_path: Path) -> None:
    result = run("bounds", "--out", str(tmp_path), "--draws", "100", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    pictures = facts.pop("pictures")
    assert sorted(pictures) == sorted(map(str, tmp_path.glob("*.png")))
    assert facts == json.loads((tmp_path / "bounds.json").read_text())


def test_the_module_is_the_command() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "drpm", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout.startswith("drpm ")
