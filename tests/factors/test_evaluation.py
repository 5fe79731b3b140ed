"""Scores of pairs against a classifier by hand, their evidence against sums over everything."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor
from torch.nn.functional import one_hot

from drpm.factors.config import FactorsConfig
from drpm.factors.experiment import Evidence, estimate_evidence, evaluate_pairs
from drpm.factors.models import FactorVAE
from drpm.nn.encoders import Posterior, standard_divergence, symmetric_divergence
from tests import oracles
from tests.factors.toys import draw, numbered
from tests.oracles import normal

SIZES = (3, 2, 4, 3)

# Guessing scores 0 with a standard deviation of at most 2 sqrt(1/4 / 500) = 0.045, where a factor
# of two values is scored on 500 pairs, and of 0.02 in the mean over the four factors. 0.12 is more
# than five of them: a false alarm in less than 1e-6 of the comparisons.
CHANCE = 0.12


def make_pairs(shared: Any, count: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The factors of both images, (P, 2, F), and which of them are shared, (P, F)."""
    batch = draw(count, shared, numbered(SIZES), seed)
    return batch["factors"], batch["is_shared"]


def one_hot_codes(factors: Tensor) -> Tensor:
    """A dimension for each value of each factor."""
    parts = [one_hot(values, size) for values, size in zip(factors.unbind(-1), SIZES, strict=True)]
    return torch.cat(parts, -1).float()


def one_hot_mask(is_shared: Tensor) -> Tensor:
    return is_shared.repeat_interleave(torch.tensor(SIZES), -1).float()


def is_chance(score: float | None) -> bool:
    return score is not None and abs(score) < CHANCE


def test_the_accuracies_by_hand() -> None:
    """Trained on two thirds of the pairs, tested on the others.

    The independent part is the first image's code, the shared part the mean of both.
    """
    factors, is_shared = make_pairs(2, 600)
    codes = factors + normal(600, 2, 4)
    mask = torch.rand(600, 4) < 0.6
    found = evaluate_pairs(codes, mask, factors, is_shared)
    shared, independent = codes.mean(1) * mask, codes[:, 0] * ~mask
    for name, part, counted in (
        ("shared_accuracy", shared, is_shared),
        ("independent_accuracy", independent, ~is_shared),
        ("shared_from_independent", independent, is_shared),
        ("independent_from_shared", shared, ~is_shared),
    ):
        expected = []
        for factor in range(4):
            fitted, tested = (counted[rows, factor] for rows in (slice(400), slice(400, 600)))
            values = factors[:, 0, factor].numpy()
            model = LogisticRegression(max_iter=1000).fit(part[:400][fitted], values[:400][fitted])
            predicted = model.predict(part[400:][tested])
            expected.append(balanced_accuracy_score(values[400:][tested], predicted, adjusted=True))
        assert found.by_factor[name] == pytest.approx(expected)
        assert getattr(found, name) == pytest.approx(np.mean(expected))
    counts, factors = mask.sum(1).double(), is_shared.sum(1)
    assert found.count_error == pytest.approx(float((counts - factors).square().mean()))
    assert found.mean_count == pytest.approx(float(counts.mean()))


def test_fixed_factors_are_shared_or_independent() -> None:
    batch = draw(2000, 1, numbered(SIZES), which="fixed")
    factors, is_shared = batch["factors"], batch["is_shared"]
    # The dimensions of the third factor are taken for shared, and those of the first are not.
    mask = one_hot_mask(torch.arange(4) == 2).expand(2000, -1)
    scores = evaluate_pairs(one_hot_codes(factors), mask, factors, is_shared)
    assert scores.by_factor["shared_from_independent"] == [1, None, None, None]
    assert is_chance(scores.shared_accuracy)
    none, second, third, fourth = scores.by_factor["independent_accuracy"]
    assert (none, second, fourth) == (None, 1, 1)
    assert is_chance(third)
    # The mean of both images tells their values, but not which is the first one's: 1/3.
    assert scores.by_factor["independent_from_shared"][2] > CHANCE


def test_parts_without_factors_have_no_score() -> None:
    for shared, expected in ((0, (None, 1.0)), (4, (1.0, None))):
        factors, is_shared = make_pairs(shared, 200)
        mask = one_hot_mask(is_shared)
        assert evaluate_pairs(one_hot_codes(factors), mask, factors, is_shared)[:2] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": np.ones((8, 4))}, r"codes must have shape \(8, 2, 4\), but got \(8, 4\)"),
        ({"codes": np.full((8, 2, 4), np.nan)}, "codes must contain finite numbers, but got nan"),
        ({"mask": np.full((8, 4), 0.5)}, "mask must contain zeros and ones, but got 0.5"),
        ({"factors": np.full((8, 2, 3), 0.5)}, "factors must contain integers, but got 0.5"),
        ({"factors": np.arange(48).reshape(8, 2, 3)}, "factors must be equal in both images"),
        ({"is_shared": np.ones((9, 3))}, r"is_shared must have shape \(8, 3\), .* \(9, 3\)"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    same = np.arange(8) % 2
    good = {
        "codes": np.ones((8, 2, 4)),
        "mask": np.ones((8, 4)),
        "factors": np.stack([same, same], 1)[..., None].repeat(3, 2),
        "is_shared": np.ones((8, 3), bool),
    }
    with pytest.raises(ValueError, match=message):
        evaluate_pairs(**{**good, **change})


LATENT = 3
PRIOR = (0.5, -0.25)
LOG_WEIGHTS = torch.tensor([-0.6, 0.8]).double()


def make(method: Any, **changes: Any) -> FactorVAE:
    """A model in float64 whose codes hardly vary, and whose weights are the same for all pairs."""
    settings = {"latent": LATENT, "gamma": 7.0, "delta": 3.0, "prior_log_weights": PRIOR, **changes}
    torch.manual_seed(0)
    model = FactorVAE((1, 8, 8), FactorsConfig(method=method, **settings)).double()
    heads = model.autoencoder.heads
    with torch.no_grad():
        # Far apart, so that it matters what is shared.
        heads.weight.mul_(20.0)
        model.autoencoder.decoder[-1].weight.mul_(20.0)
        heads.weight[LATENT:] = 0.0
        heads.bias[LATENT:] = -16.0
        if method in ("drpm", "hg"):
            model.aggregation.weights.weight.zero_()
            model.aggregation.weights.bias.copy_(LOG_WEIGHTS)
    return model


def draw_pairs(count: int) -> dict[str, Tensor]:
    return {name: x.double() if x.dim() == 4 else x for name, x in draw(count).items()}


def measure(model: FactorVAE, pairs: dict[str, Tensor], seed: int = 0) -> Evidence:
    views = pairs["first"], pairs["second"]
    return estimate_evidence(model, *views, label=pairs["label"], seed=seed)


def partitions(divergence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every mask, its log-probability and by how much that exceeds its prior's."""
    law = oracles.random_partition(divergence.log(), LOG_WEIGHTS)
    prior = oracles.random_partition(torch.zeros_like(divergence), torch.tensor(PRIOR).double())
    return law.values[:, 1], law.mass, law.log_mass - prior.log_mass


def numbers(divergence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same where the number is random and the most similar dimensions are shared: one of as
    many sets of that size as there are, which the prior takes to be alike."""
    law = oracles.fisher(LATENT, LOG_WEIGHTS, [LATENT] * 2)
    prior = oracles.fisher(LATENT, torch.tensor(PRIOR).double(), [LATENT] * 2)
    ranks = divergence.argsort().argsort()
    sets = torch.tensor([math.comb(LATENT, int(size)) for size in law.values[:, 1]]).double()
    gaps = law.log_mass - prior.log_mass + sets.log()
    return (ranks < law.values[:, 1:]).double(), law.mass, gaps


@pytest.mark.parametrize(("method", "enumerate_masks"), [("drpm", partitions), ("hg", numbers)])
def test_evidence_against_everything_that_may_be_shared(method: str, enumerate_masks: Any) -> None:
    copies = 2000  # more than a batch
    model, pair = make(method), draw_pairs(1)
    both = torch.stack([pair["first"], pair["second"]])
    one, other = (Posterior(*x) for x in zip(*model.autoencoder.posterior(both), strict=True))
    masks, probs, gaps = enumerate_masks(symmetric_divergence(one, other)[0].detach())
    # The variances are the same in both views, and so is their mean.
    middle = (one.mean + other.mean) / 2
    means = torch.stack([masks * middle + (1 - masks) * view.mean for view in (one, other)])
    many = {name: pair[name].expand(len(masks), *pair[name].shape[1:]) for name in pair}
    errors = model.errors(many, means).mean(0).detach()
    latent = standard_divergence(Posterior(means, one.log_variance.expand_as(means))).detach()
    shared = (masks * latent[0]).sum(-1)
    expected = {
        "reconstruction": errors,
        "latent_divergence": latent.sum(-1).mean(0),
        "pair_evidence": shared - 2 * errors - latent.sum((0, -1)),
    }
    found = measure(
        model, {name: x.repeat(copies, *[1] * (x.dim() - 1)) for name, x in pair.items()}
    )

    def moments(values: Tensor) -> tuple[Tensor, Tensor]:
        mean = (probs * values).sum()
        return mean, (probs * (values - mean).square()).sum().sqrt()

    partition, spread = moments(gaps)
    for name, values in expected.items():
        mean, deviation = moments(values)
        assert deviation > 1e-3  # 0.02 or more at 30 seeds; else it does not matter what is shared
        if name == "pair_evidence":
            mean, deviation = mean - partition, deviation + spread
        assert abs(getattr(found, name) - mean) < 5 * deviation / copies**0.5, name
    assert abs(found.partition_divergence - partition) < 5 * spread / copies**0.5


@pytest.mark.parametrize("method", ["drpm", "hg"])
def test_weights_and_bounds_of_training_do_not_count(method: str) -> None:
    pairs = draw_pairs(20)
    model = make(method)
    found = measure(model, pairs)
    assert model.aggregation.config.gamma == 7.0
    for changes in ({"gamma": 0.0, "delta": 100.0}, {"objective": "exact"}, {"beta": 5.0}):
        assert measure(make(method, **changes), pairs) == found
    assert measure(make(method, prior_log_weights=(3.0, 0.0)), pairs) != found


@pytest.mark.parametrize("method", ["drpm", "hg", "ada", "label"])
def test_parts_add_up_and_a_seed_settles_them(method: str) -> None:
    model, pairs = make(method), draw_pairs(20)
    before = torch.random.get_rng_state()
    found = measure(model, pairs)
    assert torch.equal(torch.random.get_rng_state(), before)
    # All parts are positive, and a shared dimension is counted once or twice.
    divergences = 2 * found.latent_divergence + found.partition_divergence
    once = -found.pair_evidence - 2 * found.reconstruction
    assert divergences / 2 < once < divergences * (1 + 1e-6)
    assert measure(model, pairs) == found
    assert measure(model, pairs, seed=1) != found
    assert (found.partition_divergence > 0) == (method in ("drpm", "hg"))
