"""Models of pairs: their shapes, their training, and what a partition finds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.factors.aggregation import Shared
from drpm.factors.config import FactorsConfig
from drpm.factors.experiment import fit_factors
from drpm.factors.models import (
    ConvolutionalAutoencoder,
    FactorVAE,
    average,
    factor_objective,
    load_factors,
)
from drpm.factors.pairs import OwnPairs, PairSampler, World
from drpm.nn.encoders import Posterior
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from tests.factors.toys import draw, two_bars
from tests.oracles import generator

METHODS = ["drpm", "hg", "ada", "label"]
TEMPERATURE = {"temperature": torch.tensor(0.5)}


@pytest.mark.parametrize("side", [8, 16, 32, 64])
def test_layers(side: int) -> None:
    autoencoder = ConvolutionalAutoencoder((3, side, side), 10)
    images = torch.rand(2, 7, 3, side, side)
    posterior = autoencoder.posterior(images)
    assert posterior.mean.shape == posterior.log_variance.shape == (2, 7, 10)
    assert autoencoder.logits(posterior.mean).shape == images.shape
    if side == 64:  # the published ones
        shapes = [tuple(x.shape) for x in autoencoder.state_dict().values() if x.dim() > 1]
        convolutions = [(32, 3, 4, 4), (32, 32, 4, 4), (64, 32, 2, 2), (64, 64, 2, 2)]
        back = [(64, 64, 4, 4), (64, 32, 4, 4), (32, 32, 4, 4), (32, 3, 4, 4)]
        assert shapes == [*convolutions, (256, 1024), (20, 256), (256, 10), (1024, 256), *back]


@pytest.mark.parametrize("shape", [(3, 64, 32), (3, 48, 48), (1, 4, 4)])
def test_other_images_are_refused(shape: tuple[int, int, int]) -> None:
    expected = rf"a side of 8, 16, 32 or 64 pixels, but got {shape[1]} x {shape[2]}"
    with pytest.raises(ConfigError, match=expected):
        ConvolutionalAutoencoder(shape, 3)


def explained(code: Tensor, value: Tensor) -> float:
    """How much of a value's variance a cubic of one code explains."""
    powers = torch.stack([code**power for power in range(4)], -1).double()
    found = powers @ torch.linalg.lstsq(powers, value[:, None].double()).solution
    return 1 - float((found[:, 0] - value).var() / value.double().var())


def finds_the_shared_dimension(seed: int, folder: Path) -> bool:
    """Train, and look what the two dimensions tell about the two bars.

    The prior holds sizes to one and one: without it, nothing is lost by sharing nothing.
    """
    training = TrainingConfig(epochs=1, batch_size=32, learning_rate=4e-3, seed=seed)
    config = FactorsConfig(latent=2, gamma=5.0, steps_per_epoch=400, training=training)
    model = fit_factors(PairSampler(two_bars(), 1, "fixed"), config, folder)
    pairs = draw(1000, seed=1, which="fixed")
    found = model.share(pairs["first"], pairs["second"])
    rates = found.mask.mean(0)
    shared, independent = found.codes[:, 0, [int(rates.argmax()), int(rates.argmin())]].T
    left, right = pairs["factors"][:, 0].double().T
    return (
        bool(rates.max() > 0.8 and rates.min() < 0.1)
        and min(explained(shared, left), explained(independent, right)) > 0.9
        and max(explained(shared, right), explained(independent, left)) < 0.1
    )


def test_a_partition_finds_the_shared_dimension(tmp_path: Path) -> None:
    """One dimension for each bar, and that of the bar in common is the shared one.

    One start in eight ends with both bars in each dimension (one of eight seeds), so that five in
    a row do once in 30,000 times.
    """
    assert any(finds_the_shared_dimension(seed, tmp_path / str(seed)) for seed in range(5))


SMALL = FactorsConfig(
    latent=4,
    steps_per_epoch=5,
    training=TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-3),
)


def make(seed: int = 0, **changes: Any) -> FactorVAE:
    torch.manual_seed(seed)
    return FactorVAE((1, 8, 8), replace(SMALL, **changes))


def fit(config: FactorsConfig, folder: Path, pairs: Any = None) -> FactorVAE:
    return fit_factors(pairs or PairSampler(two_bars(), 1), config, folder)


def weights(model: FactorVAE) -> Tensor:
    return model.autoencoder.heads.weight.detach()


def posteriors(model: FactorVAE, pairs: dict[str, Tensor]) -> tuple[Posterior, Posterior]:
    with torch.no_grad():
        one, other = (model.autoencoder.posterior(pairs[view]) for view in ("first", "second"))
    return one, other


@pytest.mark.parametrize(
    "changes",
    [*({"method": x} for x in METHODS), {"averaging": "multi-level"}, {"objective": "exact"}],
    ids=str,
)
def test_every_method_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = replace(SMALL, **changes)
    model, pairs = fit(config, tmp_path), draw(6)
    assert not torch.equal(weights(model), weights(make(**changes)))
    found = model.share(pairs["first"], pairs["second"], label=pairs["label"])
    assert found.codes.shape == (6, 2, 4)
    assert torch.equal(found.mask.sum(-1), found.number)
    assert set(found.mask.flatten().tolist()) <= {0.0, 1.0}
    assert model.traverse(pairs["first"][0], torch.linspace(-2, 2, 3)).shape == (4, 3, 1, 8, 8)
    model.save(tmp_path / "model")
    again = load_factors(tmp_path / "model")
    assert again.config == config
    same = again.share(pairs["first"], pairs["second"], label=pairs["label"])
    assert all(map(torch.equal, found, same))


@pytest.mark.parametrize("averaging", ["group", "multi-level"])
def test_shared_parts_are_averaged_and_swapped(averaging: Any) -> None:
    model, pairs = make(method="ada", averaging=averaging), draw(20)
    found = model.share(pairs["first"], pairs["second"])
    common = average(*posteriors(model, pairs), averaging).mean[:, None]
    shared = found.mask[:, None].bool()
    torch.testing.assert_close(found.averaged, torch.where(shared, common, found.codes))
    swapped = model.swap(found.codes, found.mask)
    expected = model.decode(torch.where(shared, found.codes.flip(1), found.codes))
    torch.testing.assert_close(swapped, expected)
    # What is no more than the reconstructions would show nothing.
    assert not torch.allclose(swapped, model.decode(found.averaged), atol=1e-4)


@pytest.mark.parametrize("averaging", ["group", "multi-level"])
@pytest.mark.parametrize("times", ["once", "twice"])
def test_the_latent_term_and_what_sharing_is_worth_to_it(times: Any, averaging: Any) -> None:
    """Its gradient in the mask, which a partition is learned by, is that of the formula."""
    model = make(beta=2.0, shared_divergence=times, averaging=averaging).double()
    pairs = {name: x.double() for name, x in draw(20).items() if name in ("first", "second")}
    mask = torch.rand(20, 4, generator=generator(1), dtype=torch.float64).requires_grad_()
    model.aggregation.forward = lambda given: Shared(mask, {})
    found = factor_objective(model, pairs, TEMPERATURE, generator(1))["latent"]
    views = posteriors(model, pairs)
    common, divergence = average(*views, averaging), torch.zeros(20, 4)
    for view in views:
        # From what a view says by itself to what both say, as the mask goes from 0 to 1.
        mean = torch.lerp(view.mean, common.mean, mask)
        variance = torch.lerp(view.log_variance.exp(), common.log_variance.exp(), mask)
        divergence = divergence + 0.25 * (mean.square() + variance - 1 - variance.log())
    # A shared code counts once for a pair, a half of it for an image.
    weight = 1 - mask / 2 if times == "once" else 1.0
    expected = 2.0 * (weight * divergence).sum(-1).mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, mask) for x in (found, expected)))


def test_both_views_are_reconstructed() -> None:
    model, pairs = make(method="ada"), draw(20)
    model.autoencoder.heads.bias.data[SMALL.latent :] = -40.0  # next to no noise
    model.autoencoder.decoder[-1].bias.data -= 2  # dark images, which darker ones are nearer to
    pairs["second"] = pairs["second"] / 2
    with torch.no_grad():
        _, aggregated, _ = model.compare(pairs, TEMPERATURE["temperature"])
        found = factor_objective(model, pairs, TEMPERATURE, generator(1))
    errors = [
        F.binary_cross_entropy(each, pairs[view], reduction="sum") / 20
        for each, view in zip(model.decode(aggregated.mean), ("first", "second"), strict=True)
    ]
    assert abs(errors[0] - errors[1]) > 1
    torch.testing.assert_close(found["reconstruction"], sum(errors) / 2)


@pytest.mark.parametrize("method", ["drpm", "hg"])
def test_what_is_shared_is_drawn_in_training(method: Any) -> None:
    model, pairs = make(method=method), draw(20)
    masks = []
    model.aggregation.register_forward_hook(lambda *passed: masks.append(passed[-1].mask))
    for seed in (1, 1, 2):
        terms = factor_objective(model, pairs, TEMPERATURE, generator(seed))
        assert {"sizes", "order"} & set(terms) == {"sizes", *["order"] * (method == "drpm")}
        parts = sum(x for name, x in terms.items() if name not in ("loss", "shared"))
        torch.testing.assert_close(terms["loss"], parts)
    one, again, other = masks
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


IMAGES = torch.zeros(4, 1, 8, 8)
SHAPED = r"first and second must be tensors of floating-point numbers of one shape \(P, C, H, W\)"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (IMAGES, IMAGES[1:], SHAPED),
        (IMAGES[0], IMAGES[0], rf"{SHAPED}, but got a tensor of shape \(1, 8, 8\)"),
        (np.zeros((4, 1, 8, 8)), IMAGES, f"{SHAPED}, but got a ndarray"),
        (IMAGES, IMAGES.byte(), f"{SHAPED}, .* and type torch.uint8"),
        (IMAGES, IMAGES + 255, "second must have values from 0 to 1, .* from 255 to 255"),
        (IMAGES + torch.nan, IMAGES, "first must have values"),
    ],
)
def test_other_images_are_no_pairs(first: Any, second: Any, message: str) -> None:
    for call in (make().share, OwnPairs):
        with pytest.raises(ValueError, match=message):
            call(first, second)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "label must be given for the method 'label'"),
        (torch.zeros(3).long(), r"label must be integers of shape \(4,\), .* \(3,\)"),
        ([0, 3, 99, 4], "label must be from 0 to 3, but got values from 0 to 99"),
    ],
)
def test_labels_that_no_dimension_has(label: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(method="label").share(IMAGES, IMAGES, label=label)
    with pytest.raises(ValueError, match=r"must have shape \(P, 1, 8, 8\), but got \(4, 3,"):
        make().share(*torch.zeros(2, 4, 3, 8, 8))
    # Other methods do not need it.
    make(method="ada").share(IMAGES, IMAGES, label=label)


def test_other_pairs_do_not_get_the_model_of_some(tmp_path: Path) -> None:
    world = two_bars()
    turned = World(world.images.flip(0), world.sizes)
    images = torch.rand(2, 6, 1, 8, 8, generator=generator(0))
    drawn = [PairSampler(world, 1), PairSampler(turned, 1), PairSampler(world, 0)]
    drawn.append(PairSampler(world, 1, "fixed"))
    given = [OwnPairs(images[one], images[other]) for one, other in ((0, 1), (0, 0), (1, 1))]
    for pairs, *others in (drawn, given):
        folder = tmp_path / type(pairs).__name__
        fit(SMALL, folder, pairs)
        for other in others:
            with pytest.raises(RunError, match="the data have changed"):
                fit(SMALL, folder, other)
