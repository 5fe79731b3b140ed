"""The contrastive losses against loops over pairs, and the objectives term by term."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drpm.clustering.config import NetworkConfig, PretrainingConfig
from drpm.clustering.models import Autoencoder
from drpm.clustering.pretraining import (
    ContrastiveModel,
    ContrastiveObjective,
    contrastive_loss,
    imbalance,
    reconstruction_objective,
)
from drpm.clustering.views import Affine
from tests.oracles import generator, normal

TERMS = {"instances", "clusters", "imbalance", "reconstruction"}


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def naive_contrast(first: Tensor, second: Tensor, temperature: float) -> float:
    """Every row against all others of both views; its own other view is the right answer."""
    rows = [*first, *second]
    count, total = len(first), 0.0
    for i, row in enumerate(rows):
        partner = i + count if i < count else i - count
        others = [j for j in range(len(rows)) if j != i]
        weights = {j: math.exp(cosine(row, rows[j]) / temperature) for j in others}
        total -= math.log(weights[partner] / sum(weights.values()))
    return total / len(rows)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 0.1])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_contrast_against_loops(count: int, temperature: float) -> None:
    first, second = normal(count, 4), 3 * normal(count, 4, seed=1)
    found = contrastive_loss(first, second, temperature)
    assert float(found) == pytest.approx(naive_contrast(first, second, temperature), rel=1e-10)


@pytest.mark.parametrize("clusters", [1, 2, 10])
def test_imbalance_at_its_ends(clusters: int) -> None:
    one_hot = torch.eye(clusters, dtype=torch.float64)
    assert float(imbalance(one_hot)) == pytest.approx(0.0, abs=1e-12)  # each used once
    uniform = torch.full((7, clusters), 1 / clusters, dtype=torch.float64)
    assert float(imbalance(uniform)) == pytest.approx(0.0, abs=1e-12)
    assert float(imbalance(one_hot[:1].expand(7, -1))) == pytest.approx(math.log(clusters))


# Objectives.


def make(likelihood: str = "bernoulli") -> ContrastiveModel:
    torch.manual_seed(2)
    network = Autoencoder(16, NetworkConfig(3, (12, 10), (9,)), likelihood)
    return ContrastiveModel(network, clusters=4).double()


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 16, dtype=torch.float64, generator=generator(4))


def upside_down(seen: Tensor, source: Any) -> Tensor:
    """A view that is not random: of images, not of rows."""
    assert seen.shape[1:] == (1, 4, 4)
    return seen.flip(-2)


def objective(view: Any = upside_down, **changes: Any) -> ContrastiveObjective:
    return ContrastiveObjective(PretrainingConfig(**changes), view, torch.Size([1, 4, 4]))


@torch.no_grad()
def test_the_terms_one_by_one() -> None:
    model, rows = make(), images()
    other = rows.reshape(6, 1, 4, 4).flip(-2).reshape(6, 16)
    found = objective(instance_temperature=0.3, cluster_temperature=0.7)(
        model, {"rows": rows}, {}, None
    )
    assert set(found) == {"loss", *TERMS}

    encoder, network = model.autoencoder.encoder, model.autoencoder
    one, two = (model.instances(encoder(x)) for x in (rows, other))
    left, right = (model.predict_proba(x) for x in (rows, other))
    entropies = [-(c.mean(0) * c.mean(0).log()).sum() for c in (left, right)]
    errors = [((network.decode(network.mean(encoder(x))) - x) ** 2).mean(1) for x in (rows, other)]
    expected = {
        "instances": naive_contrast(one, two, 0.3),
        "clusters": naive_contrast(left.T, right.T, 0.7),
        "imbalance": 2 * math.log(4) - float(sum(entropies)),
        "reconstruction": float(sum(error.sum() for error in errors)) / 2,
    }
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


def test_contrast_trains_all_but_the_variance() -> None:
    model = make()
    objective()(model, {"rows": images()}, {}, None)["loss"].backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == ("log_variance" not in name), name


@torch.no_grad()
def test_the_second_view_comes_from_the_generator() -> None:
    model, batch = make(), {"rows": images()}
    random_view = objective(Affine(90, 0.2, (0.8, 1.2), 10))

    def loss(seed: int) -> float:
        return float(random_view(model, batch, {}, generator(seed))["loss"])

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
