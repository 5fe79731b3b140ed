"""The Triton kernels against plain torch: on a GPU, and everywhere in Triton's interpreter."""

import sys

import pytest
import torch

from drpm.relaxation.filling import fill_softly, has_triton
from tests.oracles import normal
from tests.processes import python

SHAPES = [(1, 1, 2, 2), (3, 2, 4, 7), (2, 1, 3, 40), (1, 2, 20, 130)]


def compare(device: str) -> None:
    """Values and gradients, soft and one-hot."""
    from drpm.relaxation.filling_kernels import fill_fused

    for draws, batch, groups, n in SHAPES:
        alpha = normal(batch, groups, n, seed=1).softmax(-2).to(device).requires_grad_()
        scores = (3 * normal(draws, batch, n, seed=2)).to(device).requires_grad_()
        order = scores.detach().argsort(-1, descending=True)
        grad = normal(draws, batch, groups, n, seed=3).float().to(device)
        expected = fill_softly(alpha, scores, "neuralsort").float()
        slopes = torch.autograd.grad(expected, (alpha, scores), grad)
        found = fill_fused(alpha, scores, order, None)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        sizes = torch.zeros(batch, groups, dtype=torch.float64, device=device)
        sizes[:, 0], sizes[:, -1] = 1, n - 1
        hard = fill_fused(alpha, scores, order, sizes)
        one_hot = torch.zeros_like(hard)
        one_hot[..., -1, :] = 1
        first = order[..., :1]
        one_hot[..., 0, :].scatter_(-1, first, 1.0)
        one_hot[..., -1, :].scatter_(-1, first, 0.0)
        assert torch.equal(hard, one_hot)
        for value in (found, hard):
            pulls = torch.autograd.grad(value, (alpha, scores), grad)
            torch.testing.assert_close(pulls, slopes, rtol=1e-3, atol=1e-4)


def test_kernels_in_the_interpreter() -> None:
    """In a process of its own: Triton reads the switch when kernels are defined."""
    pytest.importorskip("triton", "3.7", reason="older interpreters fail with NumPy 2.4")
    code = "from tests.relaxation.test_kernels import compare; compare('cpu')"
    done = python("-c", code, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.cuda
def test_kernels_on_a_gpu() -> None:
    compare("cuda")


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    has_triton.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    assert not has_triton()
    has_triton.cache_clear()
