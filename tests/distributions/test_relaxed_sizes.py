"""From the laws of soft sizes to boundaries, against direct convolution."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from drpm.distributions.relaxed_sizes import boundary_survival


def laws(count: int, n: int, *batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    scores = torch.randn(*batch, count, n + 1, dtype=torch.float64, generator=generator)
    # Sizes so small that their sums mostly stay below n, where mass is cut off.
    return (scores - torch.arange(n + 1)).softmax(-1)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 35])
def test_survival_is_the_upper_tail_of_the_sums(count: int) -> None:
    n = 40
    given = laws(count, n, 2)
    found = boundary_survival(given)
    for run in range(2):
        total = np.array([1.0])
        for k in range(count):
            total = np.convolve(total, given[run, k].numpy())[: n + 1]
            expected = 1 - total.cumsum()[:n]
            np.testing.assert_allclose(found[run, k].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 18])
def test_gradients(count: int) -> None:
    given = laws(count, 4).requires_grad_()
    assert gradcheck(boundary_survival, given)
    assert count > 3 or gradgradcheck(boundary_survival, given)


def test_gradients_where_some_sizes_are_certain_and_others_are_not() -> None:
    """Values of generating functions then differ by many orders of magnitude."""
    smooth = (-0.5 * ((torch.arange(65) - 30) / 2.5).double().square()).softmax(-1)
    certain = torch.eye(65, dtype=torch.float64)[[3, 7]]
    given = torch.stack([certain[0], smooth, certain[1]]).requires_grad_()
    slopes = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found,) = torch.autograd.grad((boundary_survival(given) * slopes).sum(), given)
    total, loss = torch.eye(65, dtype=torch.float64)[0], torch.zeros((), dtype=torch.float64)
    for k in range(3):
        shifts = torch.stack([torch.nn.functional.pad(total, (i, 0))[:65] for i in range(65)])
        total = given[k] @ shifts
        loss = loss + ((1 - total.cumsum(0)[:64]) * slopes[k]).sum()
    (expected,) = torch.autograd.grad(loss, given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_an_empty_batch() -> None:
    assert boundary_survival(torch.zeros(0, 2, 5)).shape == (0, 2, 4)
