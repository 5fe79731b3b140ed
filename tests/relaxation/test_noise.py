"""Gumbel noise and the straight-through estimator."""

from __future__ import annotations

import pytest
import scipy.stats
import torch

from drpm.relaxation.operators import gumbel_like, straight_through
from tests.oracles import FALSE_ALARM, generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_noise_is_gumbel(dtype: torch.dtype) -> None:
    noise = gumbel_like(torch.zeros(50_000, dtype=dtype), generator())
    assert noise.dtype == dtype
    assert torch.isfinite(noise).all()
    assert scipy.stats.kstest(noise.numpy(), "gumbel_r").pvalue > FALSE_ALARM


def test_straight_through_keeps_the_value_and_passes_the_gradient() -> None:
    soft = torch.tensor([1 / 3, 1e-30, 0.7], requires_grad=True)
    hard = torch.tensor([0.0, 1.0, 1.0])
    value = straight_through(hard, 2 * soft)
    assert torch.equal(value.detach(), hard)
    (grad,) = torch.autograd.grad((value * torch.tensor([1.0, 2.0, 3.0])).sum(), soft)
    assert grad.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_straight_through_is_exact_whatever_the_soft_value(dtype: torch.dtype) -> None:
    """``hard - soft + soft`` would lose the hard value beside a large soft one."""
    soft = torch.randn(100_000, dtype=dtype).mul(10).exp()
    for hard in (torch.zeros_like(soft), torch.ones_like(soft), 7 * torch.ones_like(soft)):
        assert torch.equal(straight_through(hard, soft), hard)
