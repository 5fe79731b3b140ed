"""Encoders, heads and methods, against layers put together by hand, closed forms and TorchJD."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig, NetworkConfig
from drpm.multitask.models import MultitaskNetwork, multitask_objective
from drpm.multitask.networks import (
    CombineGradients,
    LeNetEncoder,
    NeuronPartition,
    ResidualEncoder,
    TaskHeads,
    UncertaintyWeighting,
    drop,
    find_weighting,
)
from drpm.nn import TaskSplit
from drpm.relaxation.operators import apply
from tests.multitask.toys import settings, some_bytes
from tests.oracles import generator

SHAPE, CLASSES = (1, 16, 16), {"a": 3, "b": 2, "c": 4}
TEMPERATURE = {"temperature": torch.tensor(0.7)}


def make(config: MultitaskConfig) -> MultitaskNetwork:
    torch.manual_seed(0)
    return MultitaskNetwork(SHAPE, CLASSES, config)


def batch(number: int = 8) -> dict[str, Tensor]:
    chance = generator(3)
    targets = [torch.randint(count, (number,), generator=chance) for count in CLASSES.values()]
    return {"images": some_bytes(number, *SHAPE), "targets": torch.stack(targets, -1)}


@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 5.0)])
def test_uls_is_the_weighted_mean_of_all_losses(weights: tuple[float, ...]) -> None:
    network = make(settings(method="uls", task_weights=weights))
    given = batch()
    terms = multitask_objective(network, given, TEMPERATURE, None)
    pixels = given["images"].float() / 255
    features = network.encoder(pixels)
    losses = []
    for task, count in enumerate(CLASSES.values()):
        heads = network.heads
        hidden = F.linear(features, heads.hidden_weight[task], heads.hidden_bias[task, 0]).relu()
        logits = F.linear(hidden, heads.weight[task], heads.bias[task, 0])[:, :count]
        losses.append(F.cross_entropy(logits, given["targets"][:, task]))
    share = [x / sum(weights or (1, 1, 1)) for x in (weights or (1, 1, 1))]
    expected = sum(x * loss for x, loss in zip(share, losses, strict=True))
    torch.testing.assert_close(terms["loss"], expected)
    torch.testing.assert_close(terms["loss_b"], losses[1])
    assert set(terms) == {"loss", "loss_a", "loss_b", "loss_c"}


def test_uncertainty_weighs_as_its_closed_form() -> None:
    method = UncertaintyWeighting(SHAPE, 3, settings())
    losses = torch.tensor([0.5, 1.0, 4.0])
    deviations = torch.tensor([0.5, 1.0, 3.0])
    method.log_variances.data.copy_(deviations.square().log())
    expected = (losses / deviations.square() + deviations.log()) / 3
    torch.testing.assert_close(method.weigh(losses), expected)


class Heads(nn.Module):
    """Losses of three tasks that pull features in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 1) for _ in range(3))

    def losses(self, copies: Tensor) -> list[Tensor]:
        return [
            (scale * layer(copy) - 1).square().mean()
            for scale, layer, copy in zip((1.0, 3.0, 0.2), self.layers, copies, strict=True)
        ]


AGGREGATORS = {"aligned-mtl": "AlignedMTL", "mgda": "MGDA", "imtl-g": "IMTLG"}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_features_follow_what_torchjd_follows(name: Any) -> None:
    """Where the features themselves are what is learned, both are the same method."""
    from torchjd import aggregation
    from torchjd.autojac import jac_to_grad, mtl_backward

    torch.manual_seed(0)
    heads = Heads().double()
    start = torch.randn(4, 5, dtype=torch.float64)
    found = start.clone().requires_grad_()
    sum(heads.losses(apply(CombineGradients, found, 3, find_weighting(name)))).backward()
    own = [p.grad.clone() for p in heads.parameters() if p.grad is not None]
    heads.zero_grad()
    expected = start.clone().requires_grad_()
    features = expected.clone()
    mtl_backward(heads.losses(features.expand(3, 4, 5)), features)
    jac_to_grad([expected], getattr(aggregation, AGGREGATORS[name])())
    assert expected.grad is not None
    assert found.grad is not None
    torch.testing.assert_close(found.grad, 3 * expected.grad)
    # Heads have their own gradients.
    torch.testing.assert_close(own, [p.grad for p in heads.parameters()])


VARIANTS: list[dict[str, Any]] = [
    {"partition": "sample"},
    {"partition": "network"},
    {"partition": "sample", "common": True},
    {"partition": "network", "affinities": True, "common": True},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_partition_shares_neurons_out(changes: dict[str, Any]) -> None:
    network, given = make(settings(**changes)), batch()
    by_sample, subsets = changes["partition"] == "sample", 3 + ("common" in changes)
    _, (seen, masks, sizes, common) = network(given["images"], torch.tensor(0.7))
    assert masks.shape == (3, 8, 10)
    assert sizes.shape == (8, subsets)
    visible = sizes[:, :3] if common is None else sizes[:, :3] + sizes[:, 3:]
    torch.testing.assert_close(masks.sum(-1).T, visible)
    features = network.encoder(given["images"].float() / 255)
    torch.testing.assert_close(seen, features * masks)
    assert torch.equal(masks, masks[:, :1].expand_as(masks)) != by_sample
    # All parameters have gradients.
    multitask_objective(network, given, TEMPERATURE, None)["loss"].backward()
    assert network.method.layer.law.affinities == ("affinities" in changes)
    start = "method.encoder.first" if by_sample else "method.layer.law.log_"
    reached = {name: p.grad for name, p in network.named_parameters() if name.startswith(start)}
    assert len(reached) == 2
    for name, slope in reached.items():
        assert slope is not None, name
        assert float(slope.abs().max()) > 1e-7  # in 24 streams at least 6e-5


@pytest.mark.parametrize("changes", VARIANTS)
def test_tasks_in_another_order(changes: dict[str, Any]) -> None:
    """Every task has another subset; nothing else is another. The common one is always last."""

    def shared(order: str) -> TaskSplit:
        network = make(settings(task_order=order, **changes)).eval()
        weights = network.method.layer.law.log_weights
        weights = getattr(weights, "bias", weights)
        weights.data.copy_(torch.arange(len(weights)))
        return network(batch()["images"], torch.tensor(0.7))[1]

    given, other, shuffled = (shared(order) for order in ("given", "reversed", "shuffled"))
    assert bool((given.sizes.diff() > 0).all())
    assert torch.equal(other.masks, given.masks.flip(0))
    assert torch.equal(other.sizes[:, :3], given.sizes[:, :3].flip(-1))
    assert torch.equal(other.sizes[:, 3:], given.sizes[:, 3:])
    assert torch.equal(other.features, given.features.flip(0))
    # By sizes alone: what is drawn after the shuffle is another.
    assert torch.equal(shuffled.sizes.sort(-1).values, given.sizes)
    assert torch.equal(shuffled.sizes[:, 3:], given.sizes[:, 3:])


def test_shuffled_tasks_are_part_of_the_model() -> None:
    """Seeds differ in them, and they are saved with the model."""
    config = settings(task_order="shuffled")
    orders = [NeuronPartition(SHAPE, 7, config).state_dict()["subsets"] for _ in range(5)]
    assert all(sorted(order.tolist()) == list(range(7)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) > 1
    assert "subsets" not in NeuronPartition(SHAPE, 7, settings()).state_dict()


def test_the_penalty_on_sizes() -> None:
    given = batch()
    free, held = (make(settings(size_penalty=x)) for x in (0.0, 0.1))
    one, other = (multitask_objective(x, given, TEMPERATURE, None) for x in (free, held))
    sizes = free(given["images"], torch.tensor(0.7))[1].sizes
    expected = 0.1 * torch.lgamma(sizes + 1).sum(-1).mean()
    torch.testing.assert_close(other["penalty"], expected)
    torch.testing.assert_close(other["loss"], one["loss"] + expected)
    assert "penalty" not in one
    # By default one over ten neurons, for more than two tasks.
    for tasks, default in ((2, 0.0), (3, 0.1)):
        assert NeuronPartition(SHAPE, tasks, settings()).size_penalty == default


@pytest.mark.parametrize("sides", [(16, 16), (42, 56)])
def test_lenet(sides: tuple[int, int]) -> None:
    encoder = LeNetEncoder((2, *sides), NetworkConfig(channels=(3, 4), width=7)).eval()
    images = torch.rand(5, 2, *sides, generator=generator(0))
    one = F.conv2d(images, encoder.first.weight, encoder.first.bias)
    two = F.conv2d(F.max_pool2d(one, 2).clamp_min(0), encoder.second.weight, encoder.second.bias)
    flat = F.max_pool2d(two, 2).clamp_min(0).reshape(5, -1)
    expected = (flat @ encoder.dense.weight.T + encoder.dense.bias).clamp_min(0)
    torch.testing.assert_close(encoder(images), expected)


def test_residual() -> None:
    network = NetworkConfig(encoder="residual", channels=(3, 5), width=7, dropout=0.5)
    encoder = ResidualEncoder((3, 8, 8), network).eval()
    images = torch.randn(4, 3, 8, 8, generator=generator(0))
    state = {name: x for name, x in encoder.state_dict().items() if "norm" not in name}

    def conv(name: str, x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        found = F.conv2d(x, state.pop(f"{name}.weight"), stride=stride, padding=padding)
        return found / (1 + 1e-5) ** 0.5  # a batch norm that has not seen anything yet

    x = conv("stem", images).clamp_min(0)
    for block, stride in enumerate((1, 1, 2, 1)):
        name = f"blocks.{block}"
        inside = conv(f"{name}.second", conv(f"{name}.first", x, stride).clamp_min(0))
        x = (inside + (conv(f"{name}.around.0", x, 2, 0) if stride == 2 else x)).clamp_min(0)
    assert x.shape == (4, 5, 4, 4)
    quarters = F.adaptive_avg_pool2d(x, 2).flatten(1)
    expected = quarters @ state.pop("dense.weight").T + state.pop("dense.bias")
    assert all(".around.1." in name for name in state)  # the norm on the way around
    torch.testing.assert_close(encoder(images), expected)
    # In training, channels of the blocks are dropped.
    assert not torch.allclose(*(encoder.train()(images) for _ in range(2)))
    assert ResidualEncoder((3, 64, 64), network)(torch.rand(2, 3, 64, 64)).shape == (2, 7)


def test_what_is_not_dropped_stays_as_it_was() -> None:
    values = torch.rand(100, 50, generator=generator(0)) + 1
    found = drop(values, 0.3, values.shape, generator(1))
    kept = found != 0
    assert torch.equal(found[kept], values[kept])
    # Five standard deviations.
    assert abs(float(kept.float().mean()) - 0.7) < 5 * (0.21 / 5000) ** 0.5


def test_a_batch_drops_the_same_channels() -> None:
    image = torch.rand(1, 1, 16, 16, generator=generator(0))
    images = image.expand(6, 1, 16, 16)
    encoder = LeNetEncoder((1, 16, 16), NetworkConfig(channels=(3, 8), width=20))
    one, *others = (encoder(images, generator(seed)) for seed in range(1, 9))
    torch.testing.assert_close(one, one[:1].expand_as(one))
    assert not all(torch.allclose(one, other) for other in others)  # two may drop the same ones
    torch.testing.assert_close(encoder(images, generator(1)), one)
    # Without any channel only the bias is left; with all of them, what evaluation has.
    encoder.dropout = 1.0
    torch.testing.assert_close(encoder(images)[0], encoder.dense.bias.clamp_min(0))
    encoder.dropout = 0.0
    torch.testing.assert_close(encoder(images), encoder.eval()(images))


@pytest.mark.parametrize("hidden", [0, 8])
def test_heads_with_different_numbers_of_classes(hidden: int) -> None:
    classes = [2, 4, 3]
    heads = TaskHeads(classes, NetworkConfig(width=5, head=hidden)).eval()
    features = torch.randn(3, 6, 5, generator=generator(0))
    logits = heads(features)
    for task, count in enumerate(classes):
        seen = features[task]
        if hidden:
            seen = F.linear(seen, heads.hidden_weight[task], heads.hidden_bias[task, 0]).relu()
        expected = F.linear(seen, heads.weight[task], heads.bias[task, 0])
        torch.testing.assert_close(logits[task, :, :count], expected[:, :count])
        assert bool((logits[task, :, count:] == -torch.inf).all())
    # With all hidden neurons dropped, the bias is left.
    heads.dropout = 1.0
    if hidden:
        left = heads.train()(features)[0, :, : classes[0]]
        torch.testing.assert_close(left, heads.bias[0, :, : classes[0]].expand_as(left))
    # What is not there has no gradient, and none that is not a number.
    F.cross_entropy(logits[0], torch.ones(6, dtype=torch.int64)).backward()
    assert heads.weight.grad is not None
    assert bool(heads.weight.grad.isfinite().all())
    assert bool((heads.weight.grad[0, 2:] == 0).all())
    assert bool((heads.weight.grad[0, :2] != 0).any())
