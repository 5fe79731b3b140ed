"""Runs that were begun together go on together, or not at all."""

from pathlib import Path

import pytest

from drpm.training.company import keep_company
from drpm.training.errors import RunError
from drpm.training.runs import COMPANY, RunFolder


def make(folder: Path, *names: str) -> list[RunFolder]:
    """Runs in folders of these names, each in its stage; new ones where there are none."""
    paths = [folder / name / "training" for name in names]
    return [RunFolder.open(x) if x.exists() else RunFolder.create(x, "x = 1\n") for x in paths]


def begin(runs: list[RunFolder]) -> None:
    keep_company(runs)
    for run in runs:
        run.log({"step": 1})


def test_the_same_may_go_on(tmp_path: Path) -> None:
    begin(make(tmp_path, "a", "b"))
    keep_company(make(tmp_path, "a", "b"))
    begin(make(tmp_path, "c"))
    keep_company(make(tmp_path, "c"))
    assert not (tmp_path / "c" / "training" / COMPANY).exists()


def test_a_moved_folder_may_go_on(tmp_path: Path) -> None:
    begin(make(tmp_path / "old", "a", "b"))
    (tmp_path / "old").rename(tmp_path / "new")
    keep_company(make(tmp_path / "new", "a", "b"))


@pytest.mark.parametrize(
    ("names", "before", "now"),
    [
        (["a", "c"], "together with ../../b/training", "together with ../../c/training"),
        (
            ["a", "b", "c"],
            "together with ../../b/training",
            "together with ../../b/training, ../../c/training",
        ),
        (["b", "a"], "together with ../../a/training", "together with ../../a/training"),
        (["c", "a"], "together with ../../b/training", "together with ../../c/training"),
        (["a"], "together with ../../b/training", "alone"),
    ],
)
def test_others_are_refused(tmp_path: Path, names: list[str], before: str, now: str) -> None:
    begin(make(tmp_path, "a", "b"))
    kept = (tmp_path / "a" / "training" / COMPANY).read_bytes()
    with pytest.raises(RunError) as refused:
        keep_company(make(tmp_path, *names))
    assert f"was begun {before} and cannot go on {now}: give the same seeds" in str(refused.value)
    assert (tmp_path / "a" / "training" / COMPANY).read_bytes() == kept


def test_begun_alone(tmp_path: Path) -> None:
    begin(make(tmp_path, "a"))
    with pytest.raises(RunError, match="was begun alone and cannot go on together with"):
        keep_company(make(tmp_path, "a", "b"))


def test_what_has_not_begun_is_free(tmp_path: Path) -> None:
    """Killed before there was anything to lose."""
    keep_company(make(tmp_path, "a", "b"))
    keep_company(make(tmp_path, "a", "c"))
    begin(make(tmp_path, "a", "c"))
    RunFolder.create(tmp_path / "a" / "training", "x = 2\n", overwrite=True)
    keep_company(make(tmp_path, "a"))


def test_alone_after_all(tmp_path: Path) -> None:
    """A list that was left before there was anything to lose does not bind who begins alone."""
    keep_company(make(tmp_path, "a", "b"))
    begin(make(tmp_path, "a"))
    keep_company(make(tmp_path, "a"))


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    runs = make(tmp_path, "a", "b")
    begin(runs)
    (runs[0].path / COMPANY).write_text("[")
    with pytest.raises(RunError, match=r"company\.json is not what a run writes"):
        keep_company(runs)
