"""The documentation: its programs run, its commands are understood, its links lead somewhere."""

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from drpm.cli import app
from drpm.training.config import preset_names
from tests.multitask.toys import write_few_digits

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Pages whose programs need no files and nothing that was trained before.
ALONE = ("arm.md", "distributions.md", "start.md")


def blocks(page: Path, language: str) -> list[str]:
    """What stands between fences of one language."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M)
    return [text for name, text in found if name == language]


def commands() -> list[list[str]]:
    lines = [line for page in PAGES for text in blocks(page, "") for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("drpm ")]


def run_programs(name: str) -> dict[str, Any]:
    """All programs of a page, one after the other as a reader would; the names they end with."""
    names: dict[str, Any] = {}
    for text in blocks(ROOT / "docs" / name, "python"):
        exec(compile(text, name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_programs_of_clusterings() -> None:
    groups = np.arange(150) % 3
    noise = np.random.default_rng(0).normal(size=(150, 2))
    lines = [f"{1e3 + 50 * h + x},{-h + 0.1 * y}" for h, (x, y) in zip(groups, noise, strict=True)]
    Path("measurements.csv").write_text("\n".join(["weight,height", *lines]))
    settings = [f"--set={stage}.epochs=3" for stage in ("training", "pretraining.training")]
    command = ["cluster", "measurements.csv", "--clusters=3", "--device=cpu", *settings]
    assert CliRunner().invoke(app, command).exit_code == 0
    with warnings.catch_warnings():
        # As the page says.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        found = run_programs("clustering.md")
    table = np.genfromtxt("out/cluster/labels.csv", delimiter=",", names=True, dtype=None)
    assert found["found"].tolist() == table["cluster"].tolist()
    np.testing.assert_array_equal(found["again"].transform(found["X"]), found["codes"])


def test_programs_of_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path / "data", monkeypatch)
    small = [
        *("--set=training.epochs=1", "--set=network.channels=2,3", "--set=train_examples=40"),
        *("--set=network.head=4", "--device=cpu", "--noise=0.5"),
    ]
    assert CliRunner().invoke(app, ["multitask", *small]).exit_code == 0
    with warnings.catch_warnings():
        # Advice on workers and logs, which so small an example has no use for.
        warnings.filterwarnings("ignore", module="lightning")
        found = run_programs("multitask.md")
    assert found["sizes"].sum(1).tolist() == [32] * 8
    network, images = found["network"], found["images"]
    assert torch.equal(network.predict(images), network.predict(images / 255))
    assert found["model"].tasks == found["load_multitask"](Path("model")).tasks


def test_programs_of_shared_factors() -> None:
    found = run_programs("factors.md")
    pairs, again = found["pairs"], found["again"]
    assert torch.equal(again.share(pairs.first, pairs.second).mask, found["found"].mask)


def test_programs_of_supervised_partitions() -> None:
    found = run_programs("supervised.md")
    again = found["load_partitioner"](Path("model")).partition(found["digits"].test.inputs[:64])
    assert torch.equal(again.subsets, found["found"].subsets)


def test_the_program_at_the_front() -> None:
    (text,) = blocks(ROOT / "README.md", "python")
    table = np.random.default_rng(0).normal(size=(100, 3))
    np.savetxt("measurements.csv", table, delimiter=",", header="a,b,c", comments="")
    names: dict[str, Any] = {}
    exec(compile(text, "README.md", "exec"), names)
    assert np.bincount(names["model"].labels_).min() >= 20


def test_the_commands_at_the_front() -> None:
    """One after the other, with a short training, on a small table and a few images."""
    random = np.random.default_rng(0)
    for name in ("measurements.csv", "new.csv"):
        np.savetxt(name, random.normal(size=(100, 3)), delimiter=",", header="a,b,c", comments="")
    Path("folder/of/images").mkdir(parents=True)
    for i, pixels in enumerate(random.integers(256, size=(40, 8, 8), dtype=np.uint8)):
        Image.fromarray(pixels).save(f"folder/of/images/{i}.png")
    short = ["--set=training.epochs=1", "--set=pretraining.training.epochs=1", "--device=cpu"]
    for line in next(x for x in blocks(ROOT / "README.md", "") if "measurements" in x).splitlines():
        words = shlex.split(line, comments=True)[1:]
        done = CliRunner().invoke(app, [*words, *(short if words[0] == "cluster" else [])])
        assert done.exit_code == 0, done.output
    for name in ("choose/index.html", "limits/labels.csv", "images/model/model.json"):
        assert (Path("out") / name).exists()
    assert len(Path("new-labels.csv").read_text().splitlines()) == 101
    assert Path("comparison.html").exists()


def test_programs_of_data() -> None:
    Path("measurements.csv").write_text("weight,species\n1.5,a\n2.5,b\n3.0,a\n")
    found = run_programs("data.md")
    assert found["digits"].train.inputs.shape == (1442, 1, 8, 8)
    assert found["mine"].train.targets["species"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", ALONE)
def test_programs_that_need_nothing(name: str) -> None:
    assert run_programs(name)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    """Read as ``drpm`` does, which does nothing yet."""
    if "--preset" in words:
        assert words[words.index("--preset") + 1] in preset_names()
    command: Any = get_command(app)
    context = command.make_context("drpm", list(words))
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    missing = [x for x in links if "://" not in x and not (page.parent / x).exists()]
    assert missing == []


def test_no_program_is_left_out() -> None:
    """Every page with programs is run by a test of this module."""
    pages = {page.name for page in PAGES if blocks(page, "python")} - {"README.md"}
    run = set(re.findall(r'run_programs\("(\w+\.md)"\)', Path(__file__).read_text("utf-8")))
    assert pages == run | {*ALONE}
