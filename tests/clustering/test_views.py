"""Second views: exact limits, torch's and scipy's own operations, and independence."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.clustering import views
from drpm.clustering.views import (
    VIEWS,
    Affine,
    CropFlipBlur,
    Either,
    Noise,
    ResizedCrop,
    choose_view,
)
from drpm.training.errors import ConfigError
from tests.oracles import FALSE_ALARM, binomial_p_values, generator

STILL = Affine(degrees=0, translation=0, scale=(1, 1), shear=0)
WHOLE = ResizedCrop(area=(1, 1), aspect=(1, 1))
SHARP = (1e-3, 1e-3)
CLOSE = {"rtol": 0, "atol": 1e-10}


def pictures(count: int = 6, channels: int = 2, height: int = 8, width: int = 8) -> Tensor:
    shape = (count, channels, height, width)
    return torch.rand(shape, dtype=torch.float64, generator=generator(5))


@pytest.fixture
def highest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number drawn is the largest of its range."""
    monkeypatch.setattr(
        views._Draws,
        "uniform",
        lambda self, low, high: torch.full(
            (len(self.images),), float(high), dtype=self.images.dtype
        ),
    )


# Limits.


@pytest.mark.parametrize("view", [STILL, WHOLE, Either(STILL, WHOLE), Noise(0.0, 0.0)])
@pytest.mark.parametrize("size", [(8, 8), (5, 9)])
def test_without_any_range_nothing_changes(view: views.View, size: tuple[int, int]) -> None:
    images = pictures(3, 2, *size)
    torch.testing.assert_close(view(images, generator()), images, **CLOSE)


@pytest.mark.usefixtures("highest")
def test_a_turn_of_90_degrees() -> None:
    images = pictures()
    turned = Affine(degrees=90, translation=0, scale=(1, 1), shear=0)(images, None)
    torch.testing.assert_close(turned, torch.rot90(images, 1, (-2, -1)), **CLOSE)


@pytest.mark.usefixtures("highest")
def test_a_shift_by_a_quarter() -> None:
    images = pictures()
    moved = Affine(degrees=0, translation=0.25, scale=(1, 1), shear=0)(images, None)
    # Two of eight pixels, both ways; what comes in is empty.
    torch.testing.assert_close(moved, F.pad(images[..., 2:, 2:], (0, 2, 0, 2)), **CLOSE)


def test_a_mirror_by_a_coin() -> None:
    images = pictures(400, 1)
    seen = CropFlipBlur(WHOLE, SHARP)(images, generator())

    def same_as(other: Tensor) -> Tensor:
        return ((seen - other).abs() < 1e-10).flatten(1).all(1)

    flipped = same_as(images.flip(-1))
    assert (flipped ^ same_as(images)).all()
    assert binomial_p_values(np.array([int(flipped.sum())]), np.array([0.5]), 400) > FALSE_ALARM


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.0])
def test_blur_is_that_of_scipy(sigma: float) -> None:
    images = pictures()
    images = (images + images.flip(-1)) / 2  # their own mirror images
    seen = CropFlipBlur(WHOLE, (sigma, sigma))(images, generator())
    expected = scipy.ndimage.gaussian_filter(images.numpy(), sigma, radius=1, axes=(-2, -1))
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(seen[inner], torch.from_numpy(expected)[inner], **CLOSE)


def test_noise_and_dropped_columns() -> None:
    rows = torch.full((200, 50), 3.0, dtype=torch.float64)
    seen = Noise(scale=0.5, dropped=0.2)(rows, generator())
    dropped = seen == 0
    assert binomial_p_values(np.array([int(dropped.sum())]), np.array([0.2]), 10_000) > FALSE_ALARM
    kept = (seen[~dropped] - 3) / 0.5
    # Five standard errors of a normal mean and, nearly, variance: 6e-7 each.
    count = len(kept)
    assert abs(float(kept.mean())) < 5 / math.sqrt(count)
    assert abs(float(kept.var()) - 1) < 5 * math.sqrt(2 / count)


# All views.

EVERY = [pytest.param(view, id=name) for name, view in VIEWS.items() if name != "noise"]


@pytest.mark.parametrize("view", EVERY)
def test_views_differ_from_sample_to_sample_but_not_from_call_to_call(view: views.View) -> None:
    images = pictures(1, 1, 16, 16).expand(8, -1, -1, -1).contiguous()
    seen = view(images, generator(1))
    assert torch.equal(seen, view(images, generator(1)))
    assert not torch.equal(seen, view(images, generator(2)))
    assert len({tuple(image.flatten().tolist()) for image in seen}) == 8


@pytest.mark.parametrize("view", EVERY)
def test_no_sample_sees_another(view: views.View) -> None:
    images = pictures(6, 1, 16, 16)
    changed = images.clone()
    changed[3] = 1 - changed[3]
    before, after = view(images, generator()), view(changed, generator())
    differs = (before != after).flatten(1).any(1)
    assert differs.tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize("view", [*EVERY, pytest.param(VIEWS["noise"], id="noise")])
@pytest.mark.parametrize("seeded", [True, False])
def test_stacked_runs_see_views_of_their_own(view: views.View, seeded: bool) -> None:
    images = pictures(1, 1, 16, 16).expand(3, 4, 1, 16, 16).contiguous()
    source = generator() if seeded else None
    seen = torch.func.vmap(lambda x: view(x, source), randomness="different")(images)
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


def test_rows_of_numbers_cannot_be_turned() -> None:
    with pytest.raises(
        ConfigError, match=r"^pretraining\.views must be 'noise' for rows of numbers, but got 'mn"
    ):
        choose_view("mnist", torch.Size([784]))
