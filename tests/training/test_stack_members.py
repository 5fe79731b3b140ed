"""Runs that were started in a stack are resumed together, or not at all."""

from pathlib import Path

import pytest

from drpm.training.errors import RunError
from drpm.training.runs import STACK_MEMBERS, RunFolder
from drpm.training.stack_members import check_stack_members


def make(folder: Path, *names: str) -> list[RunFolder]:
    """Runs in folders of these names; new ones where there are none."""
    paths = [folder / name / "training" for name in names]
    return [RunFolder.open(x) if x.exists() else RunFolder.create(x, "x = 1\n") for x in paths]


def start(runs: list[RunFolder]) -> None:
    check_stack_members(runs)
    for run in runs:
        run.log({"step": 1})


def test_the_same_stack_is_resumed_even_if_moved(tmp_path: Path) -> None:
    start(make(tmp_path / "old", "a", "b"))
    (tmp_path / "old").rename(tmp_path / "new")
    check_stack_members(make(tmp_path / "new", "a", "b"))
    start(make(tmp_path, "c"))
    check_stack_members(make(tmp_path, "c"))
    assert not (tmp_path / "c" / "training" / STACK_MEMBERS).exists()


@pytest.mark.parametrize("names", [["a", "c"], ["a", "b", "c"], ["b", "a"], ["c", "a"], ["a"]])
def test_other_stacks_are_refused(tmp_path: Path, names: list[str]) -> None:
    start(make(tmp_path, "a", "b"))
    kept = (tmp_path / "a" / "training" / STACK_MEMBERS).read_bytes()
    with pytest.raises(RunError, match=r"was started in a stack with .* cannot be resumed"):
        check_stack_members(make(tmp_path, *names))
    assert (tmp_path / "a" / "training" / STACK_MEMBERS).read_bytes() == kept


def test_started_alone(tmp_path: Path) -> None:
    start(make(tmp_path, "a"))
    with pytest.raises(RunError, match="was started alone and cannot be resumed in a stack with"):
        check_stack_members(make(tmp_path, "a", "b"))


def test_new_runs_may_change_their_stack(tmp_path: Path) -> None:
    """Killed before the first step, there is nothing to lose."""
    check_stack_members(make(tmp_path, "a", "b"))
    start(make(tmp_path, "a", "c"))
    RunFolder.create(tmp_path / "a" / "training", "x = 2\n", overwrite=True)
    start(make(tmp_path, "a"))
    check_stack_members(make(tmp_path, "a"))


def test_a_damaged_list(tmp_path: Path) -> None:
    runs = make(tmp_path, "a", "b")
    start(runs)
    (runs[0].path / STACK_MEMBERS).write_text("[")
    with pytest.raises(RunError, match=r"stack\.json is not a valid list"):
        check_stack_members(runs)
