"""The evidence of pairs, against sums over everything that may be shared."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drpm.factors.config import FactorsConfig
from drpm.factors.evaluation import Evidence, estimate_evidence
from drpm.factors.models import FactorVAE
from drpm.nn.encoders import Posterior, standard_divergence, symmetric_divergence
from tests import oracles
from tests.factors.toys import draw

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
    assert found.partition_divergence == pytest.approx(float(partition), rel=0.05)


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
    assert divergences / 2 < once <= divergences
    assert measure(model, pairs) == found
    assert measure(model, pairs, seed=1) != found
    assert (found.partition_divergence > 0) == (method in ("drpm", "hg"))
