"""The walks in CONTRIBUTING.md name symbols that exist, and are short."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALKS = re.findall(r"What happens in `[^\n]*:\n\n((?:\d+\. .*\n(?:   .*\n)*)+)", TEXT)


def test_there_are_two_walks_of_at_most_twelve_stops() -> None:
    assert len(WALKS) == 2
    assert all(len(re.findall(r"^\d+\.", walk, re.M)) <= 12 for walk in WALKS)


@pytest.mark.parametrize("symbol", re.findall(r"`(drpm\.[^`]+)`", "".join(WALKS)))
def test_every_stop_is_a_symbol(symbol: str) -> None:
    if symbol.endswith("fill_fused"):
        pytest.importorskip("triton", reason="comes with CUDA")
    resolve_name(symbol)
