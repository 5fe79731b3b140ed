"""What training refuses from Python."""

import re
from pathlib import Path
from typing import Any

import pytest

from drpm.training.checks import require_one_each


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"folders": ["a"], "seeds": [0, 1]}, "but got 1 and 2."),
        ({"folders": [], "seeds": []}, "but got 0 and 0."),
        (
            {"data": [1], "folders": ["a", "b"], "seeds": (0, 1)},
            "data, folders and seeds must have equal length of at least 1, but got 1, 2 and 2.",
        ),
        (
            {"folders": "ab", "seeds": [0, 1]},
            "folders must be a list with an entry for each run, but got 'ab'.",
        ),
        (
            {"folders": Path("out"), "seeds": [0]},
            "folders must be a list with an entry for each run, but got PosixPath('out').",
        ),
        (
            {"data": iter([1]), "seeds": [0]},
            "data must be a list with an entry for each run, but got a list_iterator.",
        ),
        (
            {"folders": ["a"], "seeds": 0},
            "seeds must be a list with an entry for each run, but got 0.",
        ),
    ],
)
def test_other_numbers_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(complaint)}$"):
        require_one_each(**given)


def test_what_is_one_each_passes() -> None:
    require_one_each(data=("x", "y"), folders=["a", Path("b")], seeds=range(2))
