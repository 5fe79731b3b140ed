"""Packages that fetch their names when they are asked for."""

from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["clustering", "factors", "multitask", "supervised"])
def test_all_names_can_be_had(name: str) -> None:
    package = import_module(f"drpm.{name}")
    assert set(package.__all__) <= set(dir(package))
    assert sorted(each for names in package._PLACES.values() for each in names) == package.__all__
    for each in package.__all__:
        assert getattr(package, each).__name__ == each
    with pytest.raises(AttributeError, match=f"module 'drpm.{name}' has no attribute 'absent'"):
        _ = package.absent
