"""Which runs a command trains together."""

from pathlib import Path

import pytest

from drpm.cli.stages import groups_to_train
from drpm.training.devices import Devices
from drpm.training.runs import RunFolder


@pytest.mark.parametrize(
    ("device", "finished", "expected"),
    [
        ("cuda", [], [range(2)]),
        ("cuda", [0], [range(1, 2)]),
        ("cuda", [0, 1], []),
        ("cpu", [], [range(1), range(1, 2)]),
        ("cpu", [1], [range(1)]),
    ],
)
def test_groups(tmp_path: Path, device: str, finished: list[int], expected: list[range]) -> None:
    runs = [RunFolder.create(tmp_path / name, "x = 1\n") for name in ("a", "b")]
    for index in finished:
        runs[index].finish({}, seed=0, device="cpu", facts={})
    assert groups_to_train(runs, Devices(device)) == expected
