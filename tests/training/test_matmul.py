"""How matrices are multiplied: for the time of a run only."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from drpm.training.config import ConfigError, override
from drpm.training.loop import train
from drpm.training.runs import RunFolder
from drpm.training.torch_state import matmul_precision
from tests.training.toys import make_program, make_run, settings, squares


def state() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("precision", "expected"), [("highest", ("highest", False)), ("high", ("high", True))]
)
def test_it_holds_for_a_block_only(precision: Any, expected: tuple[str, bool]) -> None:
    before = state()
    with matmul_precision(precision):
        assert state() == expected
        with matmul_precision("highest"):
            assert state() == ("highest", False)
        assert state() == expected
    assert state() == before
    with pytest.raises(ValueError, match="stop"), matmul_precision(precision):
        raise ValueError("stop")
    assert state() == before


# In a process of its own, because what is set this way cannot be unset.
OPERATION_BY_OPERATION = """
import torch
from drpm.training.torch_state import matmul_precision

def values():
    backends = torch.backends
    return [part.fp32_precision for part in (backends.cuda.matmul, backends.cudnn.conv)]

torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "ieee"
with matmul_precision("high"):
    assert values() == ["tf32", "tf32"], values()
    assert torch.get_float32_matmul_precision() == "high"
assert values() == ["tf32", "ieee"], values()
"""


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch is older than that"
)
def test_what_was_set_for_single_operations_comes_back() -> None:
    subprocess.run([sys.executable, "-c", OPERATION_BY_OPERATION], check=True, env=os.environ)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_run_sets_it_and_leaves_it_as_it_was(tmp_path: Path, precision: Any) -> None:
    before, seen = state(), set()

    def objective(*arguments: Any) -> dict[str, torch.Tensor]:
        seen.add(state())
        return squares(*arguments)

    def evaluate(run: int) -> dict[str, float]:
        seen.add(state())
        return {}

    program = make_program(objective, matmul=precision)
    run = make_run(tmp_path, program.config)
    train(program, [run], evaluate=evaluate)
    assert seen == {(precision, precision == "high")}
    assert state() == before
    assert f'matmul = "{precision}"' in RunFolder.open(tmp_path).config_text()


def test_a_run_that_fails_leaves_it_as_it_was(tmp_path: Path) -> None:
    def objective(*arguments: Any) -> dict[str, torch.Tensor]:
        raise ZeroDivisionError

    program = make_program(objective, matmul="high")
    before = state()
    with pytest.raises(ZeroDivisionError):
        train(program, [make_run(tmp_path, program.config)])
    assert state() == before


def test_it_is_set_by_name() -> None:
    assert override(settings(), ["matmul=high"]).matmul == "high"
    with pytest.raises(ConfigError, match="matmul must be 'highest' or 'high', but got 'tf3"):
        override(settings(), ["matmul=tf32"])


@pytest.mark.cuda
def test_a_gpu_multiplies_accordingly() -> None:
    a, b = torch.rand(2, 256, 256, device="cuda", dtype=torch.float64)
    images, kernels = torch.rand(8, 32, 16, 16, device="cuda"), torch.rand(32, 32, 3, 3).cuda()
    convolution = torch.nn.functional.conv2d(images.double(), kernels.double())

    def errors() -> list[float]:
        product = a.float() @ b.float()
        convolved = torch.nn.functional.conv2d(images, kernels)
        pairs = ((product, a @ b), (convolved, convolution))
        return [((found - exact) / exact).abs().max().item() for found, exact in pairs]

    with matmul_precision("highest"):
        assert max(errors()) < 1e-5
    with matmul_precision("high"):
        # Where there is no TF32, this is float32 as well.
        assert max(errors()) < 1e-2
