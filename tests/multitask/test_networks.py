"""Encoders and heads against the same layers put together by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.multitask.config import NetworkConfig
from drpm.multitask.networks import LeNetEncoder, ResidualEncoder, TaskHeads, drop
from drpm.training.errors import ConfigError
from tests.oracles import generator


@pytest.mark.parametrize("sides", [(16, 16), (42, 56)])
def test_lenet(sides: tuple[int, int]) -> None:
    encoder = LeNetEncoder((2, *sides), NetworkConfig(channels=(3, 4), width=7)).eval()
    images = torch.rand(5, 2, *sides, generator=generator(0))
    one = F.conv2d(images, encoder.first.weight, encoder.first.bias)
    two = F.conv2d(F.max_pool2d(one, 2).clamp_min(0), encoder.second.weight, encoder.second.bias)
    flat = F.max_pool2d(two, 2).clamp_min(0).reshape(5, -1)
    expected = (flat @ encoder.dense.weight.T + encoder.dense.bias).clamp_min(0)
    torch.testing.assert_close(encoder(images), expected)


def test_images_that_are_too_small() -> None:
    with pytest.raises(ConfigError, match="at least 16 pixels for the encoder 'lenet', but got 15"):
        LeNetEncoder((1, 15, 28), NetworkConfig())


def _normed(images: Tensor) -> Tensor:
    """By a batch norm that has not seen anything yet."""
    return images / (1 + 1e-5) ** 0.5


def test_residual() -> None:
    network = NetworkConfig(encoder="residual", channels=(3, 5), width=7, dropout=0.5)
    encoder = ResidualEncoder((3, 8, 8), network).eval()
    images = torch.randn(4, 3, 8, 8, generator=generator(0))
    state = {name: x for name, x in encoder.state_dict().items() if "norm" not in name}

    def conv(name: str, x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        return _normed(F.conv2d(x, state.pop(f"{name}.weight"), stride=stride, padding=padding))

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
    one, other = (encoder(images, generator(seed)) for seed in (1, 2))
    torch.testing.assert_close(one, one[:1].expand_as(one))
    assert not torch.allclose(one, other)
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
