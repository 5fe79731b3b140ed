"""Lazy imports of a package's names, so that ``--help`` does not import torch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def fetch_from(
    package: str, places: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package, given the names in each module."""
    homes = {name: f"{package}.{place}" for place, names in places.items() for name in names}

    def fetch(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        # The parts of a package, so that `import drpm` is enough for `drpm.distributions`.
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return fetch, lambda: sorted({*vars(sys.modules[package]), *homes})
