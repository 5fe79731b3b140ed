"""Halving and doubling images by products, against torch's own convolutions."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from drpm.factors import layers
from drpm.factors.layers import Doubling, Halving, double, halve
from tests.oracles import generator

SIZE = (6, 10)

# Channels in and out, and the side of a window: each way of both functions.
HALVED = {"few channels": (2, 7, 4), "many channels": (5, 4, 4), "small windows": (5, 4, 2)}
DOUBLED = {"few channels": (7, 2), "many channels": (5, 4)}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64, requires_grad=True)


def halve_by_torch(images: Tensor, weight: Tensor) -> Tensor:
    padding = (weight.shape[-1] - 2) // 2
    return F.conv2d(images.movedim(-1, 1), weight, stride=2, padding=padding).movedim(1, -1)


def double_by_torch(images: Tensor, weight: Tensor) -> Tensor:
    found = F.conv_transpose2d(images.movedim(-1, 1), weight, stride=2, padding=1)
    return found.movedim(1, -1)


Map = Callable[[Tensor, Tensor], Tensor]


def cases() -> Iterator[tuple[str, Map, Map, int, tuple[int, ...]]]:
    for name, (given, made, window) in HALVED.items():
        yield f"halve, {name}", halve, halve_by_torch, given, (made, given, window, window)
    for name, (given, made) in DOUBLED.items():
        yield f"double, {name}", double, double_by_torch, given, (given, made, 4, 4)


every_way = pytest.mark.parametrize(
    ("ours", "torchs", "channels", "shape"),
    [case[1:] for case in cases()],
    ids=[case[0] for case in cases()],
)


@every_way
def test_values_and_gradients(
    ours: Map, torchs: Map, channels: int, shape: tuple[int, ...]
) -> None:
    images, weight = draw(3, *SIZE, channels, seed=0), draw(*shape, seed=1)
    found, expected = ours(images, weight), torchs(images, weight)
    torch.testing.assert_close(found, expected)
    upstream = draw(*expected.shape, seed=2)
    for mine, theirs in zip(
        torch.autograd.grad(found, (images, weight), upstream),
        torch.autograd.grad(expected, (images, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@every_way
def test_stacked(ours: Map, torchs: Map, channels: int, shape: tuple[int, ...]) -> None:
    images, weight = draw(2, 3, *SIZE, channels, seed=0), draw(2, *shape, seed=1)
    expected = torch.stack([torchs(*run) for run in zip(images, weight, strict=True)])
    torch.testing.assert_close(vmap(ours)(images, weight), expected)


@pytest.fixture(params=["as on the CPU", "as on a GPU"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as on a GPU":
        monkeypatch.setattr(layers, "_BY_PRODUCTS", {"cpu"})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("window", [2, 4])
def test_halving_has_the_parameters_of_a_convolution(window: int) -> None:
    torch.manual_seed(0)
    layer = Halving(3, 5, window)
    torch.manual_seed(0)
    usual = nn.Conv2d(3, 5, window, stride=2, padding=(window - 2) // 2)
    assert usual.load_state_dict(layer.state_dict())
    images = torch.rand(2, 8, 8, 3, generator=generator(0))
    expected = usual(images.movedim(-1, 1)).movedim(1, -1)
    torch.testing.assert_close(layer(images), expected)
    assert str(layer) == f"Halving(3, 5, window={window})"


@pytest.mark.usefixtures("way")
def test_doubling_has_the_parameters_of_a_transposed_convolution() -> None:
    layer = Doubling(5, 3)
    usual = nn.ConvTranspose2d(5, 3, 4, stride=2, padding=1)
    assert usual.load_state_dict(layer.state_dict())
    images = torch.rand(2, 4, 6, 5, generator=generator(0))
    expected = usual(images.movedim(-1, 1)).movedim(1, -1)
    torch.testing.assert_close(layer(images), expected)
    assert str(layer) == "Doubling(5, 3)"


@pytest.mark.cuda
@every_way
def test_on_cuda(ours: Map, torchs: Map, channels: int, shape: tuple[int, ...]) -> None:
    images = draw(3, *SIZE, channels, seed=0).detach().cuda()
    weight = draw(*shape, seed=1).detach().cuda()
    torch.testing.assert_close(torch.compile(ours)(images, weight), torchs(images, weight))
