"""Help, completion and mistyped commands answer at once: torch is imported by what needs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drpm

# Each takes from a tenth of a second to more than one.
SLOW = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "lightning", "joblib", "ray")

COMMANDS = (
    "--help",
    "--version",
    "bounds --help",
    "cluster --help",
    "data --help",
    "data show --help",
    "reproduce --help",
    "bound",
    "data show",
    "reproduce",
    "bounds --draws 0",
)

# In one process for all of them, which is what makes it quick; what one imports, it keeps.
HELP = f"""
import sys
from types import SimpleNamespace
from typer.testing import CliRunner
import drpm.cli
from drpm.cli import completion

def slow():
    return sorted(set({SLOW}) & set(sys.modules))

assert not slow(), slow()
for command in {COMMANDS}:
    result = CliRunner().invoke(drpm.cli.app, command.split())
    assert isinstance(result.exception, SystemExit | None), (command, result.exception)
    assert not slow(), (command, slow())
for command in completion.CONFIGURATIONS:
    assert completion.settings_like(SimpleNamespace(info_name=command), "training.seed")
    assert not slow(), (command, slow())
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_and_refusals_do_without_torch() -> None:
    run(HELP)


# The package that makes this possible.


def test_the_public_names() -> None:
    assert set(drpm.__all__) <= set(dir(drpm))
    for name in drpm.__all__:
        assert getattr(drpm, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'drpm' has no attribute 'RandomPartitions'"):
        _ = drpm.RandomPartitions  # type: ignore[attr-defined]


# Divergences are registered however a law was found.
DIVERGE = """
import torch
law = RandomPartition(torch.zeros(2).double(), torch.zeros(2).double())
assert abs(torch.distributions.kl_divergence(law, law)) < 1e-9
"""


def test_names_and_parts_come_when_they_are_asked_for() -> None:
    before = "import sys, drpm; assert 'torch' not in sys.modules; from drpm import RandomPartition"
    after = (
        "assert drpm.data.registry.DATASETS; "
        "from drpm import *; assert RandomPartition is drpm.distributions.RandomPartition"
    )
    # In one process, of which each takes seconds.
    run(f"{before}\n{DIVERGE}\n{after}")


def test_a_law_from_its_own_module_has_its_divergences() -> None:
    run(f"from drpm.distributions.partitions import RandomPartition\n{DIVERGE}")


# What the laws need: torch, numpy, and what these two need themselves.
LAWS = """
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

names = {"torch", "numpy"}
waiting = list(names)
while waiting:
    for line in requires(waiting.pop()) or ():
        needed = Requirement(line)
        if not needed.marker or needed.marker.evaluate({"extra": ""}):
            if needed.name not in names:
                names.add(needed.name)
                waiting.append(needed.name)
def canonical(name):
    return name.lower().replace("_", "-")
allowed = {canonical(name) for name in names} | {"drpm"}
blocked = {
    module
    for module, owners in packages_distributions().items()
    if not allowed & {canonical(owner) for owner in owners}
}
assert {"scipy", "sklearn", "pandas", "pydantic", "safetensors", "joblib", "rich"} <= blocked

class Refuse:
    def find_spec(self, name, path=None, target=None):
        # To be found is no harm: torch looks for some packages by name.
        return ModuleSpec(name, self) if name.partition(".")[0] in blocked else None

    def create_module(self, spec):
        raise ImportError(f"{spec.name} was imported")

    def exec_module(self, module):
        pass

for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Refuse())

import torch
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
    run(LAWS)


# Completion.

DRPM = shutil.which("drpm", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.skipif(DRPM is None, reason="the package is not installed")
def test_completion_is_installed_and_completes(tmp_path: Path) -> None:
    assert DRPM is not None
    path = os.pathsep.join([str(Path(DRPM).parent), os.environ["PATH"]])
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path}
    script = """
        drpm --install-completion || exit 1
        source ~/.bashrc
        words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            # The function that bash would call, as bash calls it.
            $(complete -p drpm | sed 's/.*-F \\([^ ]*\\).*/\\1/') drpm
            echo "${COMPREPLY[*]}"
        }
        words drpm re
        words drpm reproduce --back
        words drpm reproduce bounds --backend ""
        words drpm cluster --set training.ep
        words drpm multitask --device c
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "bash completion installed" in done.stdout
    assert done.stdout.splitlines()[-5:] == [
        "reproduce",
        "--backend",
        "local ray",
        "training.epochs=",
        "cpu cuda",
    ]
