"""A data folder of its own for every test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder, which is empty."""
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    return tmp_path
