"""Contrastive losses against loops over pairs; augmentations against torch and scipy."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.clustering.config import AutoencoderConfig, PretrainingConfig
from drpm.clustering.models import Autoencoder
from drpm.clustering.pretraining import (
    VIEWS,
    ContrastiveModel,
    View,
    affine,
    blur,
    choose_view,
    contrastive_loss,
    contrastive_objective,
    reconstruction_objective,
    resized_crop,
    warp,
)
from tests.oracles import FALSE_ALARM, binomial_p_values, generator, normal

CLOSE = {"rtol": 0, "atol": 1e-10}


def naive_contrast(first: Tensor, second: Tensor, temperature: float) -> float:
    """Every row against all others of both views; its own other view is the right answer."""
    rows, total = torch.cat([first, second]), 0.0
    for i, row in enumerate(rows):
        logits = F.cosine_similarity(row[None], rows) / temperature
        others = [j for j in range(len(rows)) if j != i]
        total -= float(logits[i - len(first)] - logits[others].logsumexp(0))
    return total / len(rows)


@pytest.mark.parametrize(("count", "temperature"), [(1, 0.5), (2, 1.0), (7, 0.1)])
def test_contrast_against_loops(count: int, temperature: float) -> None:
    first, second = normal(count, 4), 3 * normal(count, 4, seed=1)
    found = contrastive_loss(first, second, temperature)
    assert float(found) == pytest.approx(naive_contrast(first, second, temperature), rel=1e-10)


def make(likelihood: str = "bernoulli", **changes: Any) -> ContrastiveModel:
    torch.manual_seed(2)
    network = Autoencoder(16, AutoencoderConfig(3, (12, 10), (9,)), likelihood)
    config = PretrainingConfig(**changes)
    return ContrastiveModel(network, 4, config, torch.Size([1, 4, 4])).double()


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 16, dtype=torch.float64, generator=generator(4))


def upside_down(seen: Tensor, source: Any) -> Tensor:
    """A view that is not random: of images, not of rows."""
    assert seen.shape[1:] == (1, 4, 4)
    return seen.flip(-2)


@torch.no_grad()
def test_the_terms_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEWS, "mnist", upside_down)
    model = make(views="mnist", instance_temperature=0.3, cluster_temperature=0.7)
    rows = images()
    other = rows.reshape(6, 1, 4, 4).flip(-2).reshape(6, 16)
    found = contrastive_objective(model, {"rows": rows}, {}, None)

    encoder, network = model.autoencoder.encoder, model.autoencoder
    one, two = (model.instances(encoder(x)) for x in (rows, other))
    left, right = (model.clusters(encoder(x)).softmax(-1) for x in (rows, other))
    entropies = [-(c.mean(0) * c.mean(0).log()).sum() for c in (left, right)]
    errors = [((network.decode(network.mean(encoder(x))) - x) ** 2).mean(1) for x in (rows, other)]
    expected = {
        "instances": naive_contrast(one, two, 0.3),
        "clusters": naive_contrast(left.T, right.T, 0.7),
        "imbalance": 2 * math.log(4) - float(sum(entropies)),
        "reconstruction": float(sum(error.sum() for error in errors)) / 2,
    }
    assert set(found) == {"loss", *expected}
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-9), name
    assert float(found["loss"]) == pytest.approx(sum(expected.values()))


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_reconstruction_alone(likelihood: str) -> None:
    model, rows = make(likelihood), images()
    found = reconstruction_objective(model, {"rows": rows}, {}, None)
    network = model.autoencoder
    decoded = network.decode(network.mean(network.encoder(rows)))
    expected = torch.nn.functional.mse_loss(decoded, rows)
    torch.testing.assert_close(found["loss"], expected)
    found["loss"].backward()
    for name, parameter in model.named_parameters():
        trained = name.startswith("autoencoder.") and "log_variance" not in name
        assert (parameter.grad is not None) == trained, name


def pictures(count: int = 6, channels: int = 2, height: int = 8, width: int = 8) -> Tensor:
    shape = (count, channels, height, width)
    return torch.rand(shape, dtype=torch.float64, generator=generator(5))


def largest(low: float, high: float) -> Tensor:
    """In place of random numbers: the upper end of their range, for six images."""
    return torch.full((6,), float(high), dtype=torch.float64)


@pytest.mark.parametrize("size", [(8, 8), (5, 9)])
def test_without_any_range_nothing_changes(size: tuple[int, int]) -> None:
    images = pictures(6, 2, *size)
    for drawn in (affine(largest, 0, 0, (1, 1), 0), resized_crop(largest, (1, 1), (1, 1))):
        torch.testing.assert_close(warp(images, *drawn), images, **CLOSE)


def test_rotation_and_translation() -> None:
    images = pictures()
    turned = warp(images, *affine(largest, 90, 0, (1, 1), 0))
    torch.testing.assert_close(turned, torch.rot90(images, 1, (-2, -1)), **CLOSE)
    # A quarter is two of eight pixels, both ways; the new ones are zero.
    moved = warp(images, *affine(largest, 0, 0.25, (1, 1), 0))
    torch.testing.assert_close(moved, F.pad(images[..., 2:, 2:], (0, 2, 0, 2)), **CLOSE)


@pytest.mark.parametrize("sigma", [0.4, 2.0])
def test_blur_is_that_of_scipy(sigma: float) -> None:
    images = pictures()
    expected = scipy.ndimage.gaussian_filter(images.numpy(), sigma, radius=1, axes=(-2, -1))
    seen = blur(images, torch.full((6,), sigma, dtype=torch.float64))
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(seen[inner], torch.from_numpy(expected)[inner], **CLOSE)


def test_noise_and_dropped_columns() -> None:
    rows = torch.full((200, 50), 3.0, dtype=torch.float64)
    seen = VIEWS["noise"](rows, generator())
    dropped = seen == 0
    assert binomial_p_values(np.array([int(dropped.sum())]), np.array([0.2]), 10_000) > FALSE_ALARM
    kept = (seen[~dropped] - 3) / 0.5
    # Five standard errors of a normal mean and, nearly, variance: 6e-7 each.
    count = len(kept)
    assert abs(float(kept.mean())) < 5 / math.sqrt(count)
    assert abs(float(kept.var()) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist"])
def test_views_depend_on_the_generator_and_on_their_image(name: str) -> None:
    view, images = VIEWS[name], pictures(6, 1, 16, 16)
    changed = images.clone()
    changed[3] = 1 - changed[3]
    before, after = view(images, generator(1)), view(changed, generator(1))
    differs = (before != after).flatten(1).any(1)
    assert differs.tolist() == [False, False, False, True, False, False]
    assert not torch.equal(before, view(images, generator(2)))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_stacked_runs_see_views_of_their_own(view: View) -> None:
    images = pictures(1, 1, 16, 16).expand(3, 4, 1, 16, 16).contiguous()
    seen = torch.func.vmap(lambda x: view(x, None), randomness="different")(images)
    assert seen.shape == images.shape
    # Two views were the same by chance 86 times in 400 x 66 pairs, all of the view of MNIST. So at
    # least 7 of 12 differ; four and four are the same with a probability of 1e-10.
    assert len({tuple(image.flatten().tolist()) for run in seen for image in run}) > 6
    assert not any(torch.equal(one, two) for one, two in combinations(seen, 2))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("auto", (1, 8, 8), "digits"),
        ("auto", (1, 28, 28), "mnist"),
        ("auto", (3, 64, 12), "digits"),
        ("auto", (12,), "noise"),
        ("fashion-mnist", (1, 28, 28), "fashion-mnist"),
        ("noise", (1, 28, 28), "noise"),
    ],
)
def test_choice(name: str, shape: tuple[int, ...], expected: str) -> None:
    assert choose_view(name, torch.Size(shape)) is VIEWS[expected]
