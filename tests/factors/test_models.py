"""Models of pairs: their shapes, their training, and what a partition finds."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from drpm.factors.aggregation import Aggregation, AggregationInput, Shared
from drpm.factors.config import FactorsConfig
from drpm.factors.fitted import FittedFactors, load_factors
from drpm.factors.models import ConvolutionalAutoencoder, FactorObjective, FactorVAE, average
from drpm.factors.own_pairs import OwnPairs
from drpm.factors.pairs import PairSampler, World
from drpm.factors.training import fit_factors
from drpm.nn.gaussians import Posterior, symmetric_divergence
from drpm.training import presets
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from drpm.training.program import Program
from drpm.training.schedules import ExponentialSchedule
from tests import oracles
from tests.factors.toys import left_is_shared, two_bars
from tests.oracles import generator

METHODS = ["drpm", "hg", "ada", "label"]


@pytest.mark.parametrize("side", [8, 16, 32, 64])
def test_shapes(side: int) -> None:
    autoencoder = ConvolutionalAutoencoder((3, side, side), 5)
    images = torch.rand(2, 7, 3, side, side)
    posterior = autoencoder.posterior(images)
    assert posterior.mean.shape == posterior.log_variance.shape == (2, 7, 5)
    assert autoencoder.decode(posterior.mean).shape == images.shape


def test_the_published_layers() -> None:
    autoencoder = ConvolutionalAutoencoder((3, 64, 64), 10)
    shapes = {name: tuple(x.shape) for name, x in autoencoder.state_dict().items()}
    assert [x for name, x in shapes.items() if "weight" in name] == [
        *((32, 3, 4, 4), (32, 32, 4, 4), (64, 32, 2, 2), (64, 64, 2, 2), (256, 1024), (20, 256)),
        *((256, 10), (1024, 256), (64, 64, 4, 4), (64, 32, 4, 4), (32, 32, 4, 4), (32, 3, 4, 4)),
    ]


@pytest.mark.parametrize("shape", [(3, 64, 32), (3, 48, 48), (1, 4, 4), (3, 128, 128)])
def test_other_images_are_refused(shape: tuple[int, int, int]) -> None:
    expected = (
        rf"squares with a side of 8, 16, 32 or 64 pixels, but got {shape[1]} x {shape[2]}; "
        "load_pairs resizes them to its image_size, and drpm factors to --image-size"
    )
    with pytest.raises(ConfigError, match=expected):
        ConvolutionalAutoencoder(shape, 3)


def explained(code: Tensor, value: Tensor) -> float:
    """How much of a value's variance a cubic of one code explains."""
    powers = torch.stack([code**power for power in range(4)], -1).double()
    found = powers @ torch.linalg.lstsq(powers, value[:, None].double()).solution
    return 1 - float((found[:, 0] - value).var() / value.double().var())


def test_a_partition_finds_the_shared_dimension() -> None:
    """One dimension for each bar, and that of the bar in common is the shared one.

    One start in eight ends with both bars in each dimension, so that five in a row do once in
    30,000 times.
    """
    assert any(finds_the_shared_dimension(seed) for seed in range(5))


def finds_the_shared_dimension(seed: int) -> bool:
    """Train, and look what the two dimensions tell about the two bars.

    The prior holds sizes to one and one: without it, nothing is lost by sharing nothing.
    """
    steps, batch = 400, 32
    training = TrainingConfig(epochs=1, batch_size=batch, learning_rate=4e-3)
    config = FactorsConfig(latent=2, gamma=5.0, training=training)
    torch.manual_seed(seed)
    model = FactorVAE((1, 8, 8), config)
    program = Program(
        model,
        FactorObjective(config),
        {"pair": torch.zeros(steps * batch)},
        training,
        augment=left_is_shared,
        schedules={"temperature": ExponentialSchedule(1.0, 0.5, steps)},
    )
    program.shuffle()
    for _ in range(steps):
        program.step()
    pairs = left_is_shared({"pair": torch.zeros(1000)}, generator(1))
    with torch.no_grad():
        views = model.compare(pairs, torch.tensor(0.5), noise=False)
    rates = views.shared.mask.mean(0)
    shared, independent = int(rates.argmax()), int(rates.argmin())
    codes = views.posterior.mean[0]
    return (
        bool(rates[shared] > 0.8 and rates[independent] < 0.1)
        and explained(codes[:, shared], pairs["left"]) > 0.9
        and explained(codes[:, shared], pairs["right"]) < 0.1
        and explained(codes[:, independent], pairs["right"]) > 0.9
        and explained(codes[:, independent], pairs["left"]) < 0.1
    )


SMALL = FactorsConfig(
    latent=4,
    steps_per_epoch=5,
    training=TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-3),
)


def fit(config: FactorsConfig, folder: Path, **options: Any) -> FittedFactors:
    pairs = options.pop("pairs", None) or PairSampler(two_bars(), 1)
    return fit_factors(pairs, config, folder, **options)


def weights(fitted: FittedFactors) -> Tensor:
    return fitted.model.autoencoder.heads.weight.detach()


@pytest.mark.parametrize("averaging", ["group", "multi-level"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(tmp_path: Path, method: Any, averaging: Any) -> None:
    config = replace(SMALL, method=method, averaging=averaging)
    fitted = fit(config, tmp_path)
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(6)}, generator(0))
    found = fitted.share(pairs["first"], pairs["second"], label=pairs["label"])
    assert found.codes.shape == (6, 2, 4)
    assert torch.equal(found.mask.sum(-1), found.number)
    assert set(found.mask.flatten().tolist()) <= {0.0, 1.0}
    assert fitted.swap(found.codes, found.mask).shape == (6, 2, 1, 8, 8)
    assert fitted.traverse(pairs["first"][0], torch.linspace(-2, 2, 3)).shape == (4, 3, 1, 8, 8)
    # A finished training is read and not repeated.
    assert torch.equal(weights(fit(config, tmp_path)), weights(fitted))


def test_the_seed_determines_weights_pairs_and_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seeded(seed: int, epochs: int = 1) -> FactorsConfig:
        return replace(
            SMALL, method="ada", training=replace(SMALL.training, epochs=epochs, seed=seed)
        )

    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = FactorVAE((1, 8, 8), SMALL).autoencoder.heads.weight
        assert torch.equal(weights(fit(seeded(seed, 0), tmp_path / f"first-{seed}")), expected)
    seed_all = torch.manual_seed
    # With equal initial weights only pairs and noise differ.
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seed_all(0))
    one, same, other = (
        weights(fit(seeded(seed), tmp_path / name))
        for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("averaging", ["group", "multi-level"])
def test_shared_parts_are_averaged_and_swapped(averaging: Any) -> None:
    torch.manual_seed(0)
    model = FactorVAE((1, 8, 8), replace(SMALL, method="ada", averaging=averaging))
    fitted = FittedFactors(model, (1, 8, 8))
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(20)}, generator(0))
    found = fitted.share(pairs["first"], pairs["second"])
    with torch.no_grad():
        posterior = model.autoencoder.posterior(torch.stack([pairs["first"], pairs["second"]]))
    one, other = (Posterior(*x) for x in zip(*posterior, strict=True))
    common = average(one, other, averaging).mean[:, None]
    shared = found.mask[:, None].bool()
    torch.testing.assert_close(found.averaged, torch.where(shared, common, found.codes))
    swapped = fitted.swap(found.codes, found.mask)
    expected = fitted.decode(torch.where(shared, found.codes.flip(1), found.codes))
    torch.testing.assert_close(swapped, expected)
    # What is no more than the reconstructions in the other order would show nothing.
    again = fitted.decode(found.averaged)
    for each in (again, again.flip(1)):
        assert not torch.allclose(swapped, each, atol=1e-4)


def test_how_often_a_shared_code_counts() -> None:
    torch.manual_seed(0)
    config = replace(SMALL, method="ada", beta=2.0)
    model = FactorVAE((1, 8, 8), config)
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(20)}, generator(0))
    temperature = {"temperature": torch.tensor(0.5)}
    views = model.compare(pairs, temperature["temperature"])
    codes = Normal(views.aggregated.mean, (views.aggregated.log_variance / 2).exp())
    divergence = kl_divergence(codes, Normal(0.0, 1.0))
    one, other = divergence
    shared = views.shared.mask.bool()
    assert 0 < shared.sum() < shared.numel()
    # For a pair, a half of it for an image.
    expected = {"once": torch.where(shared, one, one + other), "twice": one + other}
    for times, each in expected.items():
        objective = FactorObjective(replace(config, shared_divergence=times))
        found = objective(model, pairs, temperature, generator(1))["latent"]
        torch.testing.assert_close(found, 2.0 * each.sum(-1).mean() / 2)


class GivenMask(Aggregation):
    """Says what it was told to."""

    def __init__(self, config: FactorsConfig, mask: Tensor) -> None:
        super().__init__(config)
        self.mask = mask

    def forward(self, given: AggregationInput) -> Shared:
        return Shared(self.mask, {})


@pytest.mark.parametrize("averaging", ["group", "multi-level"])
@pytest.mark.parametrize("times", ["once", "twice"])
def test_what_sharing_is_worth_to_the_latent_term(times: Any, averaging: Any) -> None:
    """Its gradient in the mask, which a partition is learned by, is that of the formula."""
    torch.manual_seed(0)
    config = replace(SMALL, beta=2.0, shared_divergence=times, averaging=averaging)
    model = FactorVAE((1, 8, 8), config).double()
    drawn = PairSampler(two_bars(), 1)({"pair": torch.zeros(20)}, generator(0))
    pairs = {name: drawn[name].double() for name in ("first", "second")}
    mask = torch.rand(20, 4, generator=generator(1), dtype=torch.float64).requires_grad_()
    model.aggregation = GivenMask(config, mask)
    found = FactorObjective(config)(model, pairs, {"temperature": torch.tensor(0.5)}, generator(1))[
        "latent"
    ]
    (gradient,) = torch.autograd.grad(found, mask)
    with torch.no_grad():
        posterior = model.autoencoder.posterior(torch.stack([pairs["first"], pairs["second"]]))
        one, other = (Posterior(*x) for x in zip(*posterior, strict=True))
        common = average(one, other, averaging)
        # From what a view says by itself to what both say, as the mask goes from 0 to 1.
        mean_step = common.mean - posterior.mean
        variance_step = common.log_variance.exp() - posterior.log_variance.exp()
        mean = posterior.mean + mask * mean_step
        variance = posterior.log_variance.exp() + mask * variance_step
        divergence = 0.5 * (mean.square() + variance - 1 - variance.log()).mean(0)
        slope = (mean * mean_step + 0.5 * (1 - 1 / variance) * variance_step).mean(0)
        weight, weight_slope = (1 - mask / 2, -0.5) if times == "once" else (1.0, 0.0)
        expected = 2.0 * (weight * slope + weight_slope * divergence) / len(mask)
    torch.testing.assert_close(gradient, expected)


def test_both_views_are_reconstructed() -> None:
    model = FactorVAE((1, 8, 8), replace(SMALL, method="ada"))
    # Next to no noise: the codes are the means.
    model.autoencoder.heads.bias.data[SMALL.latent :] = -40.0
    # Dark images, which darker ones are nearer to.
    model.autoencoder.decoder[-1].bias.data -= 2
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(20)}, generator(0))
    pairs["second"] = pairs["second"] / 2
    temperature = torch.tensor(0.5)
    with torch.no_grad():
        probs = model.autoencoder.decode(model.compare(pairs, temperature).aggregated.mean)
        found = FactorObjective(SMALL)(model, pairs, {"temperature": temperature}, generator(1))
    errors = [
        F.binary_cross_entropy(each, pairs[view], reduction="sum") / 20
        for each, view in zip(probs, ("first", "second"), strict=True)
    ]
    assert abs(errors[0] - errors[1]) > 1
    torch.testing.assert_close(found["reconstruction"], sum(errors) / 2)


@pytest.mark.parametrize("method", ["drpm", "hg"])
def test_what_is_shared_is_drawn_in_training(method: Any) -> None:
    config = replace(SMALL, method=method)
    model = FactorVAE((1, 8, 8), config)
    masks = []
    model.aggregation.register_forward_hook(lambda *passed: masks.append(passed[-1].mask))
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(20)}, generator(0))
    for seed in (1, 1, 2):
        FactorObjective(config)(model, pairs, {"temperature": torch.tensor(0.5)}, generator(seed))
    one, again, other = masks
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_order_counts_with_its_weight() -> None:
    model = FactorVAE((1, 8, 8), SMALL).double()
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(5)}, generator(0))
    batch = {name: pairs[name].double() for name in ("first", "second")}
    temperature = torch.tensor(0.5)
    losses = []
    for delta in (0.0, 3.0):
        config = replace(SMALL, delta=delta)
        model.aggregation.config = config
        terms = FactorObjective(config)(model, batch, {"temperature": temperature}, generator(1))
        losses.append(terms["loss"])
    divergence = symmetric_divergence(
        *(model.autoencoder.posterior(batch[name]) for name in ("first", "second"))
    )
    scores = (divergence + SMALL.smallest_divergence).log()
    best = torch.stack([oracles.plackett_luce(row).log_mass.max() for row in scores])
    expected = 3.0 * (best + math.log(math.factorial(SMALL.latent))).mean()
    assert expected > 0.01
    torch.testing.assert_close(losses[1] - losses[0], expected)
    found, wanted = (
        torch.autograd.grad(value, model.autoencoder.heads.weight, retain_graph=True)[0]
        for value in (losses[1] - losses[0], expected)
    )
    torch.testing.assert_close(found, wanted)


def test_the_temperature_falls_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, call = [], FactorObjective.__call__

    def watched(self: Any, model: Any, batch: Any, schedule: Any, generator: Any) -> Any:
        seen.append(float(schedule["temperature"]))
        return call(self, model, batch, schedule, generator)

    monkeypatch.setattr(FactorObjective, "__call__", watched)
    fit(replace(SMALL, temperature=(2.0, 0.5)), tmp_path)
    # By the same factor at each of ten steps, and to a quarter by all of them.
    assert seen == pytest.approx([2.0 * 0.25 ** (step / 10) for step in range(10)])
    assert seen[5] == pytest.approx(1.0)


def test_the_exact_objective_trains(tmp_path: Path) -> None:
    assert weights(fit(replace(SMALL, objective="exact"), tmp_path)).isfinite().all()


def test_own_pairs(tmp_path: Path) -> None:
    drawn = PairSampler(two_bars(), 1)({"pair": torch.zeros(40)}, generator(0))
    pairs = OwnPairs(drawn["first"], drawn["second"], tuple(map(str, range(40))))
    fitted = fit(SMALL, tmp_path, pairs=pairs)
    assert fitted.share(pairs.first, pairs.second).number.shape == (40,)
    with pytest.raises(ConfigError, match="needs no labels"):
        fit(replace(SMALL, method="label"), tmp_path / "label", pairs=pairs)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            torch.zeros(4, 1, 8, 8),
            torch.zeros(3, 1, 8, 8),
            "second must hold 4 images as first does, but got 3",
        ),
        (
            torch.zeros(4, 3, 8, 8),
            torch.zeros(4, 1, 8, 8),
            r"first must have the shape \(P, 1, 8, 8\)",
        ),
        (
            torch.zeros(1, 8, 8),
            torch.zeros(4, 1, 8, 8),
            r"first must have the shape .* but got \(1, 8, 8\)",
        ),
        (np.zeros((4, 1, 8, 8)), torch.zeros(4, 1, 8, 8), "first must be a tensor, but got ndarr"),
        (
            torch.zeros(4, 1, 8, 8),
            torch.zeros(4, 1, 8, 8).byte(),
            "second must hold floating numbers, but got torch.uint8",
        ),
        (
            torch.zeros(4, 1, 8, 8),
            torch.full((4, 1, 8, 8), 255.0),
            "second must have values from 0 to 1, but they go from 255 to 255",
        ),
        (torch.full((4, 1, 8, 8), torch.nan), torch.zeros(4, 1, 8, 8), "first must have values"),
        (
            torch.zeros(0, 1, 8, 8),
            torch.zeros(0, 1, 8, 8),
            r"first must have the shape \(P, C, H, W\), but got \(0, 1, 8, 8\)",
        ),
    ],
)
def test_other_images_are_no_pairs(tmp_path: Path, first: Any, second: Any, message: str) -> None:
    fitted = FittedFactors(FactorVAE((1, 8, 8), SMALL), (1, 8, 8))
    with pytest.raises(ValueError, match=message):
        fitted.share(first, second)
    if "1, 8, 8" not in message:
        # A model that is yet to be trained has no shape to compare with.
        with pytest.raises(ValueError, match=message):
            fit(SMALL, tmp_path / "new", pairs=OwnPairs(first, second, ("",) * 4))
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (torch.zeros(3).long(), r"label must be a tensor of the shape \(4,\), .* of shape \(3,\)"),
        (torch.zeros(4, 1).long(), r"label must be a tensor of the shape \(4,\), .* \(4, 1\)"),
        ([0, 1, 2, 3], r"label must be a tensor of the shape \(4,\), .* but got a list"),
        (torch.tensor([0, 3, 99, 4]), "label must be from 0 to 3, but got some from 0 to 99"),
        (torch.tensor([0, -1, 2, 3]), "label must be from 0 to 3, but got some from -1 to 3"),
        (torch.tensor([0, 0.5, 2, 3]), r"label must be whole numbers of the shape \(4,\), but got"),
    ],
)
def test_labels_that_no_dimension_has(label: Any, message: str) -> None:
    images = torch.rand(4, 1, 8, 8, generator=generator(0))
    labelled = FittedFactors(FactorVAE((1, 8, 8), replace(SMALL, method="label")), (1, 8, 8))
    with pytest.raises(ValueError, match=message):
        labelled.share(images, images, label=label)
    # Other methods do not look at what it says.
    other = FittedFactors(FactorVAE((1, 8, 8), replace(SMALL, method="ada")), (1, 8, 8))
    if "whole" in message:
        other.share(images, images, label=label)


def test_other_pairs_do_not_get_the_model_of_some(tmp_path: Path) -> None:
    world = two_bars()
    turned = World(world.images.flip(0), world.sizes, world.names)
    images = torch.rand(2, 6, 1, 8, 8, generator=generator(0))
    cases = [
        (PairSampler(world, 1), [PairSampler(turned, 1), PairSampler(world, 0)]),
        (OwnPairs(*images), [OwnPairs(images[0], images[0]), OwnPairs(images[1], images[1])]),
    ]
    for number, (pairs, others) in enumerate(cases):
        folder = tmp_path / str(number)
        first = fit(SMALL, folder, pairs=pairs)
        again = fit(SMALL, folder, pairs=pairs)
        torch.testing.assert_close(again.model.state_dict(), first.model.state_dict())
        for other in others:
            with pytest.raises(RunError, match="the data have changed"):
                fit(SMALL, folder, pairs=other)


def test_saved_and_loaded(tmp_path: Path) -> None:
    fitted = fit(SMALL, tmp_path)
    fitted.save(tmp_path / "model")
    again = load_factors(tmp_path / "model")
    assert again.config == fitted.config
    pairs = PairSampler(two_bars(), 1)({"pair": torch.zeros(6)}, generator(0))
    one, other = (x.share(pairs["first"], pairs["second"]) for x in (fitted, again))
    for this, that in zip(one, other, strict=True):
        assert torch.equal(this, that)


def test_every_preset_loads() -> None:
    names = [name for name in presets.names() if "-factors" in name]
    assert names == ["fast-factors", "paper-factors"]
    for name in names:
        presets.load(FactorsConfig, name)
