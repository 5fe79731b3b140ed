"""The matmul precision holds for the time of a run only."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from drpm.training.loop import train
from drpm.training.torch_state import matmul_precision
from tests.training.toys import make_program, make_run, squares


def state() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_sets_it_and_restores_it(tmp_path: Path, precision: Any, fails: bool) -> None:
    before, seen = state(), set()

    def objective(*arguments: Any) -> dict[str, torch.Tensor]:
        seen.add(state())
        with matmul_precision("highest"):
            assert state() == ("highest", False)
        if fails:
            raise ZeroDivisionError
        return squares(*arguments)

    program = make_program(objective, matmul=precision)
    run = make_run(tmp_path, program.config)
    if fails:
        with pytest.raises(ZeroDivisionError):
            train(program, [run])
    else:
        train(program, [run])
    assert seen == {(precision, precision == "high")}
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
def test_precisions_of_single_operations_are_restored() -> None:
    subprocess.run([sys.executable, "-c", OPERATION_BY_OPERATION], check=True, env=os.environ)


@pytest.mark.cuda
def test_products_and_convolutions_on_a_gpu() -> None:
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
