"""The command line: what it prints, what it writes, and how it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from drpm.cli import app


def run(*arguments: str) -> Result:
    # Wide enough that no message is wrapped in the middle of what a test looks for.
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def plain(text: str) -> str:
    """The text without colours, boxes and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.match(r"drpm \S+", result.output)


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "bounds" in result.output


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


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bounds", "--draws", "0"], "Invalid value for '--draws'"),
        (["bounds", "--draws", "many"], "Invalid value for '--draws'"),
        (["bounds", "--seed", "-1"], "Invalid value for '--seed'"),
        (["bounds", "--colour", "red"], "No such option: --colour"),
        (["bound"], "No such command 'bound'"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in plain(result.output)
    assert "Traceback" not in result.output


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = run("bounds", "--out", str(file), "--draws", "1")
    assert result.exit_code == 2
    assert "Invalid value for '--out'" in plain(result.output)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("bounds", "--out", str(tmp_path / "file" / "folder"), "--draws", "1")
    assert result.exit_code == 2
    assert "cannot be made" in plain(result.output)


def test_the_module_is_the_command() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "drpm", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout.startswith("drpm ")
