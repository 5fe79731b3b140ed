"""Upper tails of running sums from values on a circle, against direct convolution."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from drpm.distributions import circle
from drpm.distributions.boundaries import boundary_survival
from tests.oracles import normal


def laws(count: int, n: int, fall: float) -> Tensor:
    return (normal(count, n + 1, seed=n) - fall * torch.arange(n + 1)).softmax(-1)


def tails(given: Tensor) -> Tensor:
    total, expected = np.array([1.0]), []
    for law in given.numpy():
        total = np.convolve(total, law)[: len(law)]
        expected.append(1 - total.cumsum()[:-1])
    return torch.tensor(np.array(expected))


@pytest.mark.parametrize(("count", "n"), [(2, 1), (3, 4), (39, 64), (7, 128)])
@pytest.mark.parametrize("fall", [0.0, 0.1, 2.0])
def test_survival_is_the_upper_tail_of_the_sums(count: int, n: int, fall: float) -> None:
    """Sums far beyond n too, as where laws do not fall."""
    given = laws(count, n, fall)
    torch.testing.assert_close(circle.survival(given), tails(given), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("count", "n"), [(3, 4), (39, 64)])
def test_gradients_are_those_of_fourier_transforms(count: int, n: int) -> None:
    given, slopes = laws(count, n, 0.5).requires_grad_(), normal(count, n, seed=1)
    (found,) = torch.autograd.grad((circle.survival(given) * slopes).sum(), given)
    (expected,) = torch.autograd.grad((boundary_survival(given, n + 1) * slopes).sum(), given)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("law", [[1, 0, 0], [0, 0, 1], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
def test_laws_whose_functions_have_zeros(law: list[float]) -> None:
    given = torch.tensor([law] * 4, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(circle.survival(given), tails(given.detach()), rtol=0, atol=1e-13)
    assert gradcheck(circle.survival, given)


def test_a_zero_on_a_node_keeps_its_gradient() -> None:
    """Nothing but zeros is no law, but its function is zero everywhere."""
    given = laws(3, 4, 0.5)
    given[1] = 0
    given.requires_grad_()
    assert gradcheck(circle.survival, given)


def test_compiled_boundaries() -> None:
    """Where there are few elements, without a Fourier transform; elsewhere with one."""
    for n in (6, 140):
        given = laws(3, n, 0.5)
        torch.compiler.reset()
        compiled = torch.compile(boundary_survival, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(
            compiled(given, n + 1), boundary_survival(given, n + 1), rtol=0, atol=1e-13
        )
