"""Halving and doubling images by products, against torch's own convolutions."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

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
@pytest.mark.parametrize("dims", [(0, 0), (None, 0), (0, None)], ids=str)
def test_stacked(
    ours: Map,
    torchs: Map,
    channels: int,
    shape: tuple[int, ...],
    dims: tuple[int | None, int | None],
) -> None:
    """Runs that have their own images, their own weights, or both: values and gradients."""
    shapes = ((3, *SIZE, channels), shape)
    inputs = [
        draw(*(() if dim is None else (2,)), *size, seed=seed)
        for seed, (size, dim) in enumerate(zip(shapes, dims, strict=True))
    ]
    apart = [
        [x if dim is None else x[run] for x, dim in zip(inputs, dims, strict=True)]
        for run in range(2)
    ]
    expected = torch.stack([torchs(*run) for run in apart])
    torch.testing.assert_close(vmap(ours, dims)(*inputs), expected)
    upstream = draw(*expected.shape[1:], seed=2)

    def loss(by: Map, images: Tensor, weight: Tensor) -> Tensor:
        return (by(images, weight) * upstream).sum()

    # Images of few channels are given ones: of their gradient torch says that it is slow.
    wanted = (1,) if (ours, channels) == (halve, HALVED["few channels"][0]) else (0, 1)
    found = vmap(grad(lambda *run: loss(ours, *run), argnums=wanted), dims)(*inputs)
    theirs = [torch.autograd.grad(loss(torchs, *run), run) for run in apart]
    for mine, place in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, torch.stack([each[place] for each in theirs]))


@every_way
def test_second_derivatives(ours: Map, torchs: Map, channels: int, shape: tuple[int, ...]) -> None:
    images, weight = draw(1, 4, 4, channels, seed=0), draw(*shape, seed=1)
    assert torch.autograd.gradgradcheck(ours, (images, weight))


@every_way
def test_forward_mode(ours: Map, torchs: Map, channels: int, shape: tuple[int, ...]) -> None:
    inputs = (draw(2, *SIZE, channels, seed=0), draw(*shape, seed=1))
    tangents = (draw(2, *SIZE, channels, seed=2), draw(*shape, seed=3))
    torch.testing.assert_close(jvp(ours, inputs, tangents), jvp(torchs, inputs, tangents))


@every_way
@pytest.mark.parametrize("count", [0, 1, 3, 4, 6])
def test_sums_in_parts(
    monkeypatch: pytest.MonkeyPatch,
    ours: Map,
    torchs: Map,
    channels: int,
    shape: tuple[int, ...],
    count: int,
) -> None:
    """Whether or not some images at a time have a sum of their own."""
    products: list[int] = []
    bmm = torch.bmm

    def watched(rows: Tensor, factors: Tensor) -> Tensor:
        products.append(len(rows))
        return bmm(rows, factors)

    monkeypatch.setattr(torch, "bmm", watched)
    monkeypatch.setattr(layers, "_ROWS", 4)
    images, weight = draw(count, *SIZE, channels, seed=0), draw(*shape, seed=1)
    found, expected = ours(images, weight), torchs(images, weight)
    assert products == {0: [], 1: [], 3: [], 4: [4], 6: [2]}[count]
    torch.testing.assert_close(found, expected)
    upstream = draw(*expected.shape, seed=2)
    torch.testing.assert_close(
        torch.autograd.grad(found, (images, weight), upstream),
        torch.autograd.grad(expected, (images, weight), upstream),
    )


@pytest.fixture(params=["as on the CPU", "as on a GPU"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as on a GPU":
        monkeypatch.setattr(layers, "_BY_PRODUCTS", {"cpu"})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("window", [2, 4])
def test_halving_has_the_parameters_of_a_convolution(window: int) -> None:
    layer = Halving(3, 5, window)
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
def test_compiled_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
    ours: Map,
    torchs: Map,
    channels: int,
    shape: tuple[int, ...],
) -> None:
    monkeypatch.setattr(layers, "_ROWS", 4)
    images = draw(2, 4, *SIZE, channels, seed=0).detach().cuda()
    weight = draw(2, *shape, seed=1).detach().cuda()

    def gradients(by: Map) -> Callable[..., Any]:
        return vmap(grad(lambda weight, images: by(images, weight).square().sum()))

    torch.compiler.reset()
    found = torch.compile(gradients(ours), fullgraph=True)(weight, images)
    torch.testing.assert_close(found, gradients(torchs)(weight, images))
