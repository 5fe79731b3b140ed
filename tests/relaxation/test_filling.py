"""Y = alpha P in blocks against the product with the whole matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from drpm.relaxation import filling
from drpm.relaxation.filling import fill_softly
from tests import oracles
from tests.oracles import normal

TEXTBOOK = {"neuralsort": oracles.neuralsort, "softsort": oracles.softsort}
streamable = pytest.mark.parametrize("sort", sorted(TEXTBOOK))


def scores_of(kind: str, *shape: int) -> Tensor:
    noise = normal(*shape)
    return {
        "random": noise,
        "tied": (2 * noise).round() / 2,
        "equal": torch.zeros_like(noise),
        "spread": 200 * noise,
        "clustered": 40 * noise.sign() + 1e-3 * noise,
        "one-far": torch.cat([noise[..., 1:], noise[..., :1] + 1e4], -1),
        "cauchy": noise / normal(*shape, seed=1),
    }[kind]


def fill(alpha: Tensor, scores: Tensor, sort: str, path: str) -> Tensor:
    """With the whole matrix, or as if it were too large to build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "_DENSE_LIMIT_CPU", 0 if path == "streamed" else 1 << 40)
        return fill_softly(alpha, scores, sort)


def windows(groups: int, n: int, *batch: int) -> Tensor:
    """Soft windows: columns sum to one over the subsets."""
    return normal(*batch, groups, n, seed=7).mul(3).softmax(-2)


KINDS = ["random", "tied", "equal", "spread", "clustered", "one-far", "cauchy"]


@streamable
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 400])
def test_streamed_equals_dense(sort: str, kind: str, n: int) -> None:
    """Values and gradients, for block sizes that fit and that do not."""
    base, alpha = scores_of(kind, n), windows(4, n)
    cotangent = normal(4, n, seed=9)
    results = []
    for path in ("dense", "streamed"):
        leaves = (alpha.clone().requires_grad_(), base.clone().requires_grad_())
        value = fill(*leaves, sort, path)
        grads = torch.autograd.grad((value * cotangent).sum(), leaves)
        results.append((value.detach(), *grads))
    for dense, streamed in zip(*results, strict=True):
        assert torch.isfinite(streamed).all()
        largest = dense.abs().max().clamp(min=1)
        assert (dense - streamed).abs().max() <= 1e-9 * largest
    leaves = (alpha.clone().requires_grad_(), base.clone().requires_grad_())
    textbook = leaves[0] @ TEXTBOOK[sort](leaves[1], 1.0)
    assert (results[1][0] - textbook).abs().max() <= 1e-8
    if kind in ("random", "spread"):  # where scores are tied, slopes are not unique
        expected = torch.autograd.grad((textbook * cotangent).sum(), leaves)
        torch.testing.assert_close(results[0][1:], expected, rtol=1e-8, atol=1e-8)


@streamable
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_equals_dense_in_single_precision(sort: str, kind: str) -> None:
    n = 700
    base, alpha = scores_of(kind, n).float(), windows(3, n).float()
    cotangent = normal(3, n, seed=9).float()
    results = []
    for cast in (torch.float64, torch.float32):
        path = "dense" if cast == torch.float64 else "streamed"
        leaves = (alpha.to(cast).requires_grad_(), base.to(cast).requires_grad_())
        value = fill(*leaves, sort, path)
        grads = torch.autograd.grad((value * cotangent.to(cast)).sum(), leaves)
        results.append([t.double() for t in (value.detach(), *grads)])
    for dense, streamed in zip(*results, strict=True):
        assert (dense - streamed).abs().max() <= 1e-4 * dense.abs().max().clamp(min=1)


@streamable
def test_batches_and_broadcasting(sort: str) -> None:
    scores, alpha = normal(5, 1, 300), windows(3, 300, 2)
    dense = fill(alpha, scores, sort, "dense")
    streamed = fill(alpha, scores, sort, "streamed")
    assert streamed.shape == (5, 2, 3, 300)
    torch.testing.assert_close(streamed, dense, rtol=0, atol=1e-10)
    for a in range(5):
        single = fill(alpha[1], scores[a, 0], sort, "streamed")
        torch.testing.assert_close(streamed[a, 1], single, rtol=0, atol=1e-10)


@streamable
def test_derivatives_of_the_streamed_path(sort: str) -> None:
    """The first and second ones."""
    leaves = (windows(2, 5).requires_grad_(), normal(5).requires_grad_())
    assert gradcheck(lambda a, s: fill(a, s, sort, "streamed"), leaves)
    assert gradgradcheck(lambda a, s: fill(a, s, sort, "streamed"), leaves)


@streamable
def test_memory_is_linear(sort: str) -> None:
    """The matrix of 30,000 elements alone takes 3.6 GB; nothing near it is kept for backward."""
    n = 30_000
    scores = (5 * normal(n)).float().requires_grad_()
    alpha = torch.zeros(3, n)
    alpha[0, : n // 3], alpha[1, n // 3 : n // 2], alpha[2, n // 2 :] = 1, 1, 1
    value, kept = oracles.kept_bytes(lambda: fill_softly(alpha, 100 * scores, sort))
    assert kept < 200 * n * 8
    (value[0] * torch.linspace(0, 1, n)).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad.abs().max() > 0
