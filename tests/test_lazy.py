"""Packages import their names on first use, and the laws need only torch and numpy."""

from importlib import import_module

import pytest

from tests.processes import python

PACKAGES = ["drpm", *(f"drpm.{x}" for x in ("clustering", "factors", "multitask", "supervised"))]


def run(code: str) -> None:
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_can_be_imported(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for each in package.__all__:
        assert getattr(package, each).__name__ == each
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'absent'"):
        _ = package.absent


# Divergences are registered however a law was imported.
DIVERGE = """
import torch
law = RandomPartition(torch.zeros(2).double(), torch.zeros(2).double())
assert abs(torch.distributions.kl_divergence(law, law)) < 1e-9
"""


def test_names_and_parts_are_imported_on_first_use() -> None:
    before = "import sys, drpm; assert 'torch' not in sys.modules; from drpm import RandomPartition"
    after = (
        "assert drpm.data.catalogue.DATASETS; "
        "from drpm import *; assert RandomPartition is drpm.distributions.RandomPartition"
    )
    run(f"{before}\n{DIVERGE}\n{after}")


# As if there were only torch, numpy, and what these two need themselves.
ONLY_TORCH = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

names = ["torch", "numpy"]
for name in names:
    for needed in map(Requirement, requires(name) or ()):
        if not needed.marker or needed.marker.evaluate({"extra": ""}):
            names += {needed.name}.difference(names)
def canonical(name):
    return name.lower().replace("_", "-")
allowed = {canonical(name) for name in names} | {"drpm"}
blocked = {
    module
    for module, owners in packages_distributions().items()
    if not allowed & {canonical(owner) for owner in owners}
}
assert {"scipy", "sklearn", "pandas", "pydantic", "safetensors", "joblib", "rich"} <= blocked

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        # As if it were not installed: torch looks for some packages before it imports them.
        blocks = name.partition(".")[0] in blocked
        return None if blocks else self.finder.find_spec(name, path, target)

for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path[:] = map(Without, sys.meta_path)
"""

LAWS = """
import drpm

scores, weights = torch.randn(5), torch.zeros(3)
law = drpm.RandomPartition(scores, weights)
Y = law.sample((4,))
assert law.log_prob(Y).shape == (4,)
assert law.mode.shape == (3, 5)
relaxed = drpm.RelaxedRandomPartition(1.0, scores.requires_grad_(), weights)
(relaxed.rsample() * torch.randn(3, 5)).sum().backward()
assert scores.grad.isfinite().all()
for name in drpm.__all__:
    getattr(drpm, name)
"""


def test_the_laws_need_only_torch_and_numpy() -> None:
    run(f"{ONLY_TORCH}from drpm.distributions.partitions import RandomPartition{DIVERGE}{LAWS}")
