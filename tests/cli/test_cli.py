"""The command line: what it prints and what it writes."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.cli.errors import printing
from drpm.data import own


def run(*arguments: str) -> Result:
    # Wide enough that no message is wrapped in the middle of what a test looks for.
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.match(r"drpm \S+", result.output)


def shell(
    *arguments: str, stdout: IO[str] | int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drpm", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUTF8": "0", **environment},
    )


def test_help_says_where_to_start() -> None:
    text = run("--help").output
    assert "drpm cluster digits " in text
    assert "drpm cluster my.csv --clusters 5 " in text


@pytest.mark.parametrize(
    "command", ["", "data", "data list", "cluster", "factors", "multitask", "supervised", "bounds"]
)
def test_help_shows_no_value_of_a_flag(command: str) -> None:
    text = run(*command.split(), "--help").output
    assert "bool" not in text
    assert re.search(r"--help +Show this message", text)


def test_help_of_an_argument() -> None:
    text = run("cluster", "--help").output
    assert "Usage: drpm cluster [OPTIONS] DATA " in text
    for suffix in own.SUFFIXES:
        assert suffix in text
    assert "a folder of images" in text
    assert "[OPTIONS] [DATA]" in run("multitask", "--help").output


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("bench", "bounds", "data", "reproduce"):
        assert command in result.output
    assert "Exit codes: 0 done; 1 refused" in result.output


def test_bounds(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = run("bounds", "--out", str(out), "--draws", "500", "--seed", "3")
    assert result.exit_code == 0, result.output
    document = json.loads((out / "bounds.json").read_text())
    assert (document["num_draws"], document["seed"]) == (500, 3)
    header, *rows = [line.split("\t") for line in result.stdout.splitlines()[:5]]
    assert [row[0] for row in rows][:2] == ["weights = 1, scores = 1", "weights ~ U, scores = 1"]
    assert {len(row) for row in rows} == {len(header)}
    again = run("bounds", "--out", str(out), "--draws", "500", "--seed", "3", "--json")
    assert json.loads(again.stdout) == {**document, "figure": str(out / "bounds.png")}


# What a command prints may have nowhere to go.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    ("command", "unbuffered"), [("--help", ""), ("--help", "1"), ("data check digits", "1")]
)
def test_a_full_output(command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = shell(*command.split(), stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr == (
        "error: The standard output cannot be written, because the disk is full.\n"
    )


def test_a_closed_output() -> None:
    command = f"{sys.executable} -m drpm --help >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: The standard output cannot be written, because it is closed.\n"


def test_a_reader_that_has_had_enough_is_no_fault() -> None:
    command = f"{sys.executable} -m drpm --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_other_errors_are_not_taken_for_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="elsewhere"), printing():
        raise OSError(28, "elsewhere")
    assert capsys.readouterr().err == ""


def test_letters_that_the_output_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    with printing():
        print("0.5 ± 0.1")
    assert buffer.getvalue() == b"0.5 ? 0.1\n"


def test_the_module_is_the_command() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "drpm", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout.startswith("drpm ")
