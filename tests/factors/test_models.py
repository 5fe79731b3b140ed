"""Models of pairs: their layers, their training, and what each method shares."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.factors.config import FactorsConfig
from drpm.factors.experiment import fit_factors
from drpm.factors.models import (
    AGGREGATIONS,
    AggregationInput,
    ConvolutionalAutoencoder,
    FactorVAE,
    PartitionAggregation,
    Shared,
    average,
    factor_objective,
    load_factors,
)
from drpm.factors.pairs import OwnPairs, PairSampler, World
from drpm.nn.encoders import Posterior, standard_divergence, symmetric_divergence
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from tests import oracles
from tests.factors.toys import draw, two_bars
from tests.oracles import generator, normal

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

    Of 48 seeds, 13 ended with both bars in each dimension: ten in a row do once in 400,000 times.
    """
    assert any(finds_the_shared_dimension(seed, tmp_path / str(seed)) for seed in range(10))


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
        (IMAGES, IMAGES + 255, r"second must lie in \[0, 1\], .* from 255 to 255"),
        (IMAGES + torch.nan, IMAGES, r"first must lie in \[0, 1\]"),
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
    world, images = two_bars(), torch.rand(2, 6, 1, 8, 8, generator=generator(0))
    turned = World(world.images.flip(0), world.sizes)
    drawn = [PairSampler(*each) for each in ((world, 1), (turned, 1), (world, 0))]
    drawn.append(PairSampler(world, 1, "fixed"))
    given = [OwnPairs(images[one], images[other]) for one, other in ((0, 1), (0, 0), (1, 1))]
    for pairs in (drawn, given):
        assert len({each.fingerprint() for each in pairs}) == len(pairs)
    fit(SMALL, tmp_path, given[0])
    with pytest.raises(RunError, match="the data have changed"):
        fit(SMALL, tmp_path, given[1])


COLD = torch.tensor(0.1)


def share(
    method: str, divergence: Tensor, weights: Any = None, *, noise: bool = False, **batch: Tensor
) -> Any:
    aggregation = AGGREGATIONS[method](FactorsConfig(method=method, latent=divergence.shape[-1]))
    if weights is not None:
        layer = aggregation.weights
        torch.nn.init.zeros_(layer.weight)
        layer.bias.data.copy_(torch.tensor(weights))
    aggregation.to(divergence.dtype)
    return aggregation(AggregationInput(divergence, batch, COLD, generator(0), noise))


def test_label() -> None:
    found = share("label", torch.rand(2, 4), label=torch.tensor([2, 0]))
    assert found.mask.tolist() == [[1, 1, 0, 1], [0, 1, 1, 1]]
    assert found.terms == {}


def test_adaptive() -> None:
    divergence = torch.tensor([[0.0, 4.0, 1.9, 2.1], [5.0, 5.1, 9.0, 6.9]])
    assert share("ada", divergence).mask.tolist() == [[1, 0, 1, 0], [1, 1, 0, 1]]
    # Not at all, by rounding alone, and by little.
    divergence = torch.tensor([[0.0, 0.0, 0.0], [4e-14, 0.0, 1e-14], [4e-6, 0.0, 3e-6]])
    assert share("ada", divergence).mask.tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 0]]
    # One dimension alone is not less than itself.
    assert share("ada", torch.tensor([[0.5], [0.0]])).mask.tolist() == [[0], [1]]


@pytest.mark.parametrize("method", ["hg", "drpm"])
@pytest.mark.parametrize(
    ("weights", "shared"), [((0.0, 0.0), 2), ((-9.0, 9.0), 4), ((9.0, 0.0), 0)]
)
def test_what_differs_least_is_shared(
    method: str, weights: tuple[float, float], shared: int
) -> None:
    """The first log-weight is that of independent dimensions, the second of shared ones."""
    divergence = torch.tensor([[0.1, 50.0, 1e-4, 9.0], [3.0, 1e-3, 800.0, 0.2]]).double()
    found = share(method, divergence, weights)
    order = divergence.argsort(-1)
    expected = torch.zeros_like(divergence).scatter(-1, order[:, :shared], 1.0)
    torch.testing.assert_close(found.mask, expected)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("method", ["hg", "drpm"])
def test_masks_are_whole_and_have_gradients(method: str, noise: bool) -> None:
    divergence = normal(6, 5, seed=1).exp().requires_grad_()
    aggregation = AGGREGATIONS[method](FactorsConfig(method=method, latent=5)).double()
    torch.nn.init.zeros_(aggregation.weights.weight)
    given = AggregationInput(divergence, {}, torch.tensor(1.0), generator(0), noise)
    mask = aggregation(given).mask
    assert set(mask.flatten().tolist()) <= {0.0, 1.0}
    wanted = (divergence, aggregation.weights.bias)
    which = torch.autograd.grad(mask[:, 0].sum(), wanted, retain_graph=True, allow_unused=True)[0]
    # Only a partition learns which dimensions are shared; sizes depend on weights alone here.
    assert (which is not None and bool(which.abs().sum() > 0)) == (method == "drpm")
    independent, shared = torch.autograd.grad(mask.sum(), wanted[1])[0].tolist()
    assert shared > 0.1
    assert independent < -0.1


def terms(objective: Any, log_scores: Tensor, log_weights: Tensor, **changes: Any) -> Any:
    n = log_scores.shape[-1]
    config = FactorsConfig(latent=n, objective=objective, gamma=1.0, delta=1.0, **changes)
    aggregation = PartitionAggregation(config).double()
    return aggregation.divergences(log_scores, log_weights, generator(1))


def test_bounds_against_all_sizes_and_orders() -> None:
    log_scores, log_weights = normal(3, 4, seed=2), normal(3, 2, seed=3)
    prior = torch.tensor([0.5, -0.25])
    sizes, order = terms("bounds", log_scores, log_weights, prior_log_weights=tuple(prior.tolist()))
    for row in range(3):
        law = oracles.fisher(4, log_weights[row], [4, 4])
        other = oracles.fisher(4, prior.double(), [4, 4])
        chances = law.log_mass.exp()
        ways = torch.lgamma(law.values.double() + 1).sum(-1)
        expected = (chances * (ways + law.log_mass - other.log_mass)).sum()
        torch.testing.assert_close(sizes[row], expected)
        best = oracles.plackett_luce(log_scores[row]).log_mass.max()
        torch.testing.assert_close(order[row], best + math.log(math.factorial(4)))


def test_sizes_count_with_their_weight() -> None:
    """Of the hypergeometric law, which has no bound: their divergence as it is."""
    # A prior that prefers few shared dimensions, and weights that are nearly equal: far from it.
    divergence, prior = normal(3, 4, seed=1).sigmoid(), (3.0, -3.0)
    config = FactorsConfig(method="hg", latent=4, gamma=0.7, prior_log_weights=prior)
    aggregation = AGGREGATIONS["hg"](config).double()
    torch.nn.init.uniform_(aggregation.weights.weight, -0.2, 0.2)
    torch.nn.init.zeros_(aggregation.weights.bias)
    found = aggregation(AggregationInput(divergence, {}, COLD, generator(0), True))
    other = oracles.fisher(4, torch.tensor(prior))
    laws = [oracles.fisher(4, row.detach()) for row in aggregation.weights(divergence)]
    expected = 0.7 * torch.stack([law.kl(other) for law in laws])
    assert expected.min() > 0.1
    torch.testing.assert_close(found.terms, {"sizes": expected})


def test_exact_terms_against_all_partitions() -> None:
    log_scores, log_weights = normal(3, seed=2)[None], normal(2, seed=3)[None]
    law = oracles.random_partition(log_scores[0], log_weights[0])
    prior = oracles.random_partition(torch.zeros(3).double(), torch.zeros(2).double())
    expected = (law.log_mass.exp() * (law.log_mass - prior.log_mass)).sum()
    rows = log_scores.expand(60, -1), log_weights.expand(60, -1)
    oracles.assert_mean(sum(terms("exact", *rows, draws=500)), expected)


def test_views_that_hardly_differ_have_hardly_an_order() -> None:
    config, shape = FactorsConfig(), torch.tensor([[0.9, 0.1, 0.5, 0.3]], dtype=torch.float64)
    for size in (1e-6, 1e3):
        shared = share("drpm", size * shape, (0.0, 0.0))
        log_scores = (size * shape[0] + config.smallest_divergence).log()
        best = oracles.plackett_luce(log_scores).log_mass.max()
        expected = config.delta * (best + math.log(math.factorial(4)))
        torch.testing.assert_close(shared.terms["order"][0], expected)
        # Which dimensions are shared goes by the least of differences.
        assert shared.mask.tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_averages() -> None:
    one = Posterior(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 4.0]).log())
    other = Posterior(torch.tensor([4.0, 2.0]), torch.tensor([3.0, 4.0]).log())
    group = average(one, other, "group")
    torch.testing.assert_close(group.mean, torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(group.log_variance.exp(), torch.tensor([2.0, 4.0]))
    levels = average(one, other, "multi-level")
    # Weighted by precision: 1 and 1/3.
    torch.testing.assert_close(levels.mean, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(levels.log_variance.exp(), torch.tensor([1.5, 4.0]))


def test_divergences_against_torch() -> None:
    one, other = (Posterior(normal(200, seed=s), normal(200, seed=s + 9)) for s in (1, 2))
    p, q = (torch.distributions.Normal(x.mean, (x.log_variance / 2).exp()) for x in (one, other))
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(symmetric_divergence(one, other), (kl(p, q) + kl(q, p)) / 2)
    standard = torch.distributions.Normal(torch.zeros(1).double(), torch.ones(1).double())
    torch.testing.assert_close(standard_divergence(one), kl(p, standard))
    # Small ones keep their digits, up to the rounding of the inputs.
    near = Posterior(one.mean + 1e-3 * other.mean, one.log_variance + 1e-3)
    narrow = [Posterior(*(x.float() for x in each)) for each in (one, near)]
    exact = symmetric_divergence(one, near)
    torch.testing.assert_close(symmetric_divergence(*narrow).double(), exact, rtol=2e-3, atol=0)
