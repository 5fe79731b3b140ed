"""Convolutions by matrix products: torch's values and gradients, without its grouped kernels."""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from drpm.training import convolution, convolution_direct
from drpm.training.convolution import Conv2d, conv2d
from drpm.training.devices import Devices
from drpm.training.graphs import CapturedStep
from drpm.training.matmul import matmul_precision
from drpm.training.program import BaseProgram, Batch, Program
from drpm.training.stacking import StackedProgram
from tests.training.toys import settings, take_steps

RUNS = 3
USUAL = convolution._SLOW_GROUPS

# Size of the images, of the windows, stride, padding, channels in and out.
CASES: dict[str, tuple[Any, ...]] = {
    "plain": ((7, 7), (3, 3), 1, 0, 1, 1),
    "LeNet, first": ((28, 28), (5, 5), 1, 0, 1, 10),
    "LeNet, second": ((12, 12), (5, 5), 1, 0, 10, 20),
    "oblong": ((6, 9), (2, 5), 1, 0, 3, 2),
    "padded": ((5, 6), (3, 4), 1, (1, 2), 2, 3),
    "padded beyond the window": ((3, 2), (2, 1), 1, (4, 3), 2, 2),
    "strided": ((8, 7), (4, 4), 2, 1, 2, 3),
    "blocks without overlap": ((6, 9), (3, 3), 3, 0, 2, 3),
    "strided one way": ((7, 8), (3, 2), (1, 3), (0, 1), 2, 3),
    "strides past the window": ((9, 9), (2, 2), 4, 0, 1, 2),
    "one pixel a window": ((4, 5), (1, 1), 1, 0, 3, 2),
    "one window an image": ((3, 4), (3, 4), 1, 0, 2, 2),
    "one pixel an image": ((1, 1), (1, 1), 1, 0, 2, 2),
    "one row, one window": ((1, 5), (1, 5), 1, 0, 2, 2),
    "many outputs": ((5, 4), (3, 3), 1, 1, 3, 70),
    "many channels": ((5, 5), (4, 2), 1, (0, 2), 20, 3),
}
UNSTRIDED = [name for name, case in CASES.items() if case[2] == 1]


@pytest.fixture(autouse=True)
def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do on the CPU what is usually done on a GPU only."""
    monkeypatch.setattr(convolution, "_SLOW_GROUPS", {"cpu", "cuda"})


class Example:
    """Stacked inputs of one case, and what torch makes of them run by run."""

    def __init__(
        self,
        name: str,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        number: int = 4,
    ) -> None:
        size, window, stride, padding, channels, outputs = CASES[name]
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(RUNS, *shape, generator=generator).to(device, dtype)

        self.options = {"stride": stride, "padding": padding}
        images = draw(number, channels, *size)
        self.inputs = (images, draw(outputs, channels, *window), draw(outputs))
        shape = self.convolve(F.conv2d, *(x[0] for x in self.inputs)).shape
        self.factors = draw(*shape)

    def convolve(self, by: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return by(*inputs, **self.options)

    def ours(self, *inputs: Tensor) -> Tensor:
        return self.convolve(conv2d, *inputs)

    def loss(self, *inputs: Tensor) -> Tensor:
        """Of the three inputs of one run, and its factors."""
        return (self.ours(*inputs[:-1]) * inputs[-1]).sum()

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Values and gradients, from a loop over the runs."""
        inputs = [x.clone().requires_grad_() for x in self.inputs]
        values = torch.stack(
            [self.convolve(F.conv2d, *run) for run in zip(*inputs, strict=True)],
        )
        (values * self.factors).sum().backward()
        return values.detach(), [x.grad for x in inputs if x.grad is not None]


def gradients_inside(example: Example) -> Any:
    return vmap(grad(example.loss, argnums=(0, 1, 2)))(*example.inputs, example.factors)


def gradients_outside(example: Example) -> Any:
    def total(*inputs: Tensor) -> Tensor:
        return vmap(example.loss)(*inputs, example.factors).sum()

    return grad(total, argnums=(0, 1, 2))(*example.inputs)


def gradients_by_backward(example: Example) -> Any:
    inputs = [x.clone().requires_grad_() for x in example.inputs]
    vmap(example.loss)(*inputs, example.factors).sum().backward()
    return [x.grad for x in inputs]


WAYS = [gradients_inside, gradients_outside, gradients_by_backward]


@pytest.mark.parametrize("name", list(CASES))
def test_values(name: str) -> None:
    example = Example(name)
    values, _ = example.expected()
    found = vmap(example.ours)(*example.inputs)
    torch.testing.assert_close(found, values, rtol=1e-12, atol=1e-12)
    without = vmap(lambda images, weight: example.ours(images, weight, None))(*example.inputs[:2])
    bias = example.inputs[2][:, None, :, None, None]
    torch.testing.assert_close(without, values - bias, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", list(CASES))
def test_gradients(name: str, way: Callable[[Example], Any]) -> None:
    example = Example(name)
    _, gradients = example.expected()
    for found, expected in zip(way(example), gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["LeNet, second", "strided"])
def test_float32(name: str) -> None:
    example = Example(name, torch.float32)
    values, gradients = example.expected()
    torch.testing.assert_close(vmap(example.ours)(*example.inputs), values, rtol=1e-4, atol=1e-4)
    for found, expected in zip(gradients_inside(example), gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["padded", "padded beyond the window", "strided"])
def test_first_and_second_derivatives(name: str) -> None:
    example = Example(name)
    inputs = tuple(x[:2, :1].clone().requires_grad_() for x in example.inputs[:2])

    def mapped(images: Tensor, weight: Tensor) -> Tensor:
        return vmap(lambda *run: example.ours(*run, None))(images, weight)

    assert torch.autograd.gradcheck(mapped, inputs)
    assert torch.autograd.gradgradcheck(mapped, inputs)


@pytest.mark.parametrize("name", ["padded", "strided"])
def test_second_derivatives_inside_a_map(name: str) -> None:
    example = Example(name)

    def curvature(by: Callable[..., Tensor]) -> Any:
        def slope(*inputs: Tensor) -> Tensor:
            def bent(images: Tensor) -> Tensor:
                return example.convolve(by, images, *inputs[1:]).tanh().sum()

            return grad(bent)(inputs[0]).square().sum()

        return vmap(grad(slope, argnums=(0, 1, 2)))(*example.inputs)

    torch.testing.assert_close(curvature(conv2d), curvature(F.conv2d))


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (None, None)])
@pytest.mark.parametrize("name", ["padded", "strided"])
def test_images_or_weights_in_common(name: str, dims: tuple[int | None, int | None]) -> None:
    example = Example(name)
    images, weight = (
        x if dim == 0 else x[0] for x, dim in zip(example.inputs[:2], dims, strict=True)
    )

    def gradients(by: Callable[..., Tensor]) -> Any:
        def loss(images: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
            return (example.convolve(by, images, weight) * factors).sum()

        return vmap(grad(loss, argnums=(0, 1)), (*dims, 0))(images, weight, example.factors)

    torch.testing.assert_close(gradients(conv2d), gradients(F.conv2d), rtol=1e-12, atol=1e-12)


def test_maps_over_any_dimension_and_inside_each_other() -> None:
    images, weight, bias = Example("padded").inputs
    expected = vmap(F.conv2d)(images, weight, bias)
    found = vmap(conv2d, (2, 4, 1), 1)(images.movedim(0, 2), weight.movedim(0, 4), bias.mT)
    torch.testing.assert_close(found.movedim(1, 0), expected)

    inner = vmap(conv2d, (None, 0, 0))
    pairs = vmap(inner, (0, None, None))(images, weight, bias)
    for first in range(RUNS):
        for second in range(RUNS):
            one = F.conv2d(images[first], weight[second], bias[second])
            torch.testing.assert_close(pairs[first, second], one)


def test_one_image_without_a_batch() -> None:
    images, weight, bias = Example("padded").inputs
    found = vmap(conv2d)(images[:, 0], weight, bias)
    torch.testing.assert_close(found, vmap(F.conv2d)(images[:, 0], weight, bias))


class Convolutions(TorchDispatchMode):
    """Sees the operations that are really done: how many groups each convolution has."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.groups.append(args[8])
        elif func is torch.ops.aten.convolution_backward.default:
            self.groups.append(args[9])
        self.products += func is torch.ops.aten.bmm.default
        return func(*args, **(kwargs or {}))


class Eyes(nn.Module):
    """Two layers of convolutions, with a bias and without."""

    def __init__(self, seed: int, make: Any = Conv2d) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            make(1, 3, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            make(3, 4, (2, 3), padding=(0, 1), bias=False),
            nn.Dropout2d(0.0),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 2 * 3, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return out


def pictures() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(20, 1, 8, 8, generator=generator)
    return {"images": images, "wanted": images.mean((2, 3))}


def looking(
    model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: Any
) -> dict[str, Tensor]:
    return {"loss": (model(batch["images"]) - batch["wanted"]).square().mean()}


def make_stack(make: Any = Conv2d, device: str = "cpu", **changes: Any) -> StackedProgram:
    models = [Eyes(seed, make) for seed in range(RUNS)]
    config = settings(**{"batch_size": 5, "device": device, **changes})
    return StackedProgram(models, looking, pictures(), config, devices=Devices(device))


def test_stacked_runs_group_nothing() -> None:
    def watch(make: Any) -> Convolutions:
        program = make_stack(make)
        program.shuffle()
        with Convolutions() as seen:
            program.step()
        return seen

    # What this is for: torch's own are in groups, forward and backward.
    assert RUNS in watch(nn.Conv2d).groups
    ours = watch(Conv2d)
    assert ours.groups == []
    # Each layer forward, and the gradients of its weights and of its images: of these the first
    # layer has none. A linear layer has as many.
    assert ours.products == 2 + 3 + 3


def test_on_the_cpu_torch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_SLOW_GROUPS", USUAL)
    images, weight, bias = Example("plain").inputs
    with Convolutions() as seen:
        found = vmap(conv2d)(images, weight, bias)
    assert seen.groups == [RUNS]
    assert torch.equal(found, vmap(F.conv2d)(images, weight, bias))


def test_each_run_of_a_stack_equals_that_run_alone() -> None:
    stack = make_stack(gradient_clip=0.5)
    alone = [Program(Eyes(s, nn.Conv2d), looking, pictures(), stack.config) for s in range(RUNS)]
    stack.shuffle()
    for run, program in enumerate(alone):
        program.order.copy_(stack.order[:, run])
    programs: list[BaseProgram] = [stack, *alone]
    for _ in range(stack.steps_per_epoch):
        for program in programs:
            program.step()
    found = stack.readings().values
    for run, program in enumerate(alone):
        expected = program.readings().values[:, :, 0]
        torch.testing.assert_close(found[:, :, run], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(stack.model_state(run), program.model_state())


def test_a_stack_learns() -> None:
    values = take_steps(make_stack(learning_rate=0.02), 40)[:, 0]
    assert (values[-4:].mean(0) < values[:4].mean(0)).all()


@pytest.mark.parametrize("name", ["LeNet, first", "padded", "strided"])
def test_unmapped_it_is_torchs_own_to_the_last_bit(name: str) -> None:
    example = Example(name, torch.float32)
    inputs = tuple(x[0] for x in example.inputs)

    def both(by: Callable[..., Tensor]) -> tuple[Tensor, Any, Any]:
        def loss(*inputs: Tensor) -> Tensor:
            return example.convolve(by, *inputs).square().sum()

        own = [x.clone().requires_grad_() for x in inputs]
        loss(*own).backward()
        transformed = grad(loss, argnums=(0, 1, 2))(*inputs)
        return example.convolve(by, *inputs), [x.grad for x in own], transformed

    torch.testing.assert_close(both(conv2d), both(F.conv2d), rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_the_module_stands_in_for_torchs(bias: bool) -> None:
    options: dict[str, Any] = {"stride": (1, 2), "padding": 1, "bias": bias}
    torch.manual_seed(0)
    ours = Conv2d(2, 3, (3, 2), **options)
    torch.manual_seed(0)
    theirs = nn.Conv2d(2, 3, (3, 2), **options)
    images = torch.randn(4, 2, 6, 7)
    assert torch.equal(ours(images), theirs(images))
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    stacked = torch.randn(RUNS, 4, 2, 6, 7)
    found = vmap(lambda x: functional_call(ours, {}, x))(stacked)
    torch.testing.assert_close(found, torch.stack([theirs(x) for x in stacked]))
    assert repr(ours) == (
        f"Conv2d(2, 3, kernel_size=(3, 2), stride=(1, 2), padding=(1, 1), bias={bias})"
    )


def test_autocast_is_that_of_a_convolution() -> None:
    example = Example("padded", torch.float32)
    values, gradients = example.expected()
    with torch.autocast("cpu", torch.bfloat16):
        found = vmap(example.ours)(*example.inputs)
        assert found.dtype == example.ours(*(x[0] for x in example.inputs)).dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), values, rtol=0.05, atol=0.1)
        for gradient, expected in zip(gradients_inside(example), gradients, strict=True):
            assert gradient.dtype == torch.float32
            torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.3)
        # Which leaves float64 alone.
        assert vmap(conv2d)(*Example("padded").inputs).dtype == torch.float64


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("by_kernels", [False, True])
def test_compiled_it_is_one_graph(
    mapped: bool, by_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_DIRECT", {"cpu"} if by_kernels else set())
    monkeypatch.setattr(convolution, "_DIRECT_PRECISIONS", {"ieee", "tf32"})
    example = Example("LeNet, second", torch.float32)
    step: Callable[..., Any] = grad(example.loss, argnums=(0, 1, 2))
    inputs = (*example.inputs, example.factors)
    step, inputs = (vmap(step), inputs) if mapped else (step, tuple(x[0] for x in inputs))
    called: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep)
    with warnings.catch_warnings():
        # What the compiler says of torch's insides.
        warnings.simplefilter("ignore")
        found = torch.compile(step, backend=backend, fullgraph=True)(*inputs)
    monkeypatch.setattr(convolution, "_DIRECT", set())
    torch.testing.assert_close(found, step(*inputs), rtol=1e-4, atol=1e-3)
    assert sum("convolution" in name for name in called) == (0 if mapped else 2)
    # One forward, one for the images, one for weights and biases.
    assert sum("drpm" in name for name in called) == (3 if mapped and by_kernels else 0)


def stand_in_correlation(
    images: Tensor, weight: Tensor, bias: Tensor | None, size: Any, padding: Any, turned: bool
) -> Tensor:
    """What a kernel does, in torch's words."""
    if turned:
        weight = weight.flip(-2, -1).transpose(-4, -3)
    down, across = padding
    runs = images.shape[:-4].numel()
    flat = F.pad(images, (across, across, down, down)).flatten(0, -5)
    found = [
        F.conv2d(
            flat[run],
            weight.flatten(0, -5)[run],
            bias if bias is None else bias.reshape(runs, -1)[run],
        )
        for run in range(runs)
    ]
    assert tuple(found[0].shape[-2:]) == tuple(size)
    return torch.stack(found).unflatten(0, images.shape[:-4])


def stand_in_gradient(images: Tensor, gradient: Tensor, window: Any, padding: Any) -> Tensor:
    shape = (gradient.shape[-3], images.shape[-3], *window)
    pairs = zip(images.flatten(0, -5), gradient.flatten(0, -5), strict=True)
    weights = [nn.grad.conv2d_weight(x, shape, g, padding=tuple(padding)) for x, g in pairs]
    biases = gradient.sum((-4, -2, -1))
    return torch.cat([torch.stack(weights).flatten(), biases.flatten()])


if os.environ.get("TRITON_INTERPRET") != "1":
    convolution_direct.correlate.register_kernel("cpu", stand_in_correlation)
    convolution_direct.weight_gradient.register_kernel("cpu", stand_in_gradient)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device on which convolutions are done by kernels, and by nothing else.

    On the CPU there are stand-ins for them, except where TRITON_INTERPRET=1 says that Triton is to
    run them there.
    """
    device: str = request.param
    if device == "cpu":
        monkeypatch.setattr(convolution, "_DIRECT", {"cpu"})
    monkeypatch.setattr(convolution, "_DIRECT_PRECISIONS", {"ieee", "tf32"})
    monkeypatch.delattr(convolution, "ByColumns")
    return device


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """To a tolerance in units of what is usual: large sums have their rounding near zero, too."""
    assert found.dtype == torch.float32
    usual = max(1.0, expected.square().mean().sqrt().item())
    torch.testing.assert_close(
        found.cpu().double(), expected, rtol=tolerance, atol=tolerance * usual
    )


@pytest.mark.parametrize("name", UNSTRIDED)
def test_kernels_values(name: str, direct: str) -> None:
    example = Example(name, torch.float32, direct)
    values, _ = Example(name).expected()
    assert_near(vmap(example.ours)(*example.inputs), values)
    without = vmap(lambda images, weight: example.ours(images, weight, None))(*example.inputs[:2])
    assert_near(without, values - Example(name).inputs[2][:, None, :, None, None])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNSTRIDED)
def test_kernels_gradients(name: str, way: Callable[[Example], Any], direct: str) -> None:
    example = Example(name, torch.float32, direct)
    _, gradients = Example(name).expected()
    for found, expected in zip(way(example), gradients, strict=True):
        assert_near(found, expected)
        # Or the optimiser would not take all of them at once.
        assert found.is_contiguous()


@pytest.mark.parametrize("name", ["padded", "many channels"])
def test_kernels_second_derivatives(name: str, direct: str) -> None:
    def curvature(by: Callable[..., Tensor], example: Example) -> Any:
        def slope(*inputs: Tensor) -> Tensor:
            def bent(*inputs: Tensor) -> Tensor:
                return (example.convolve(by, *inputs) / 8).tanh().sum()

            found = grad(bent, argnums=(0, 1, 2))(*inputs)
            return sum((x.square().sum() for x in found), torch.zeros(()))

        return vmap(grad(slope, argnums=(0, 1, 2)))(*example.inputs)

    found = curvature(conv2d, Example(name, torch.float32, direct))
    for one, expected in zip(found, curvature(F.conv2d, Example(name)), strict=True):
        assert_near(one, expected)


@pytest.mark.parametrize("dims", [(0, None, 0), (None, 0, 0), (0, 0, None), (None, None, None)])
def test_kernels_with_inputs_in_common(dims: tuple[int | None, ...], direct: str) -> None:
    def gradients(by: Callable[..., Tensor], example: Example) -> Any:
        pairs = zip(example.inputs, dims, strict=True)
        inputs = [x if dim == 0 else x[0] for x, dim in pairs]

        def loss(*inputs: Tensor) -> Tensor:
            return (example.convolve(by, *inputs[:3]) * inputs[3]).sum()

        inside = vmap(grad(loss, argnums=(0, 1, 2)), (*dims, 0))(*inputs, example.factors)
        if dims == (None, None, None):
            return inside

        def total(*inputs: Tensor) -> Tensor:
            return vmap(loss, (*dims, 0))(*inputs, example.factors).sum()

        return *inside, *grad(total, argnums=(0, 1, 2))(*inputs)

    found = gradients(conv2d, Example("padded", torch.float32, direct))
    for one, expected in zip(found, gradients(F.conv2d, Example("padded")), strict=True):
        assert_near(one, expected)


def test_kernels_map_over_any_dimension_and_inside_each_other(direct: str) -> None:
    images, weight, bias = Example("padded", torch.float32, direct).inputs
    expected = torch.stack([F.conv2d(*run) for run in zip(*Example("padded").inputs, strict=True)])
    found = vmap(conv2d, (2, 4, 1), 1)(images.movedim(0, 2), weight.movedim(0, 4), bias.mT)
    assert_near(found.movedim(1, 0), expected)

    pairs = vmap(vmap(conv2d, (None, 0, 0)), (0, None, None))(images, weight, bias)
    assert_near(pairs.diagonal().movedim(-1, 0), expected)
    one = vmap(conv2d)(images[:, 0], weight, bias)
    assert_near(one, expected[:, 0])


def test_kernels_are_for_float32_at_stride_1(direct: str) -> None:
    for example in (Example("strided", torch.float32, direct), Example("plain", device=direct)):
        # As if it were missing, because the fixture took it away.
        with pytest.raises(NameError, match="ByColumns"):
            vmap(example.ours)(*example.inputs)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("name", ["LeNet, first", "LeNet, second"])
def test_kernels_on_full_batches(name: str, precision: Any) -> None:
    example = Example(name, torch.float32, "cuda", number=256)
    values, gradients = Example(name, number=256).expected()
    tolerance = 1e-4 if precision == "highest" else 1e-2
    with matmul_precision(precision):
        assert_near(vmap(example.ours)(*example.inputs), values, tolerance)
        first = gradients_inside(example)
        for found, expected in zip(first, gradients, strict=True):
            assert_near(found, expected, tolerance)
        # Sums are added up in the same order every time.
        for found, again in zip(first, gradients_inside(example), strict=True):
            assert torch.equal(found, again)


@pytest.mark.cuda
@pytest.mark.parametrize("name", list(CASES))
def test_values_and_gradients_on_cuda(name: str) -> None:
    example = Example(name, device="cuda")
    values, gradients = Example(name).expected()
    found = vmap(example.ours)(*example.inputs)
    torch.testing.assert_close(found.cpu(), values, rtol=1e-12, atol=1e-12)
    for way in WAYS:
        for gradient, expected in zip(way(example), gradients, strict=True):
            torch.testing.assert_close(gradient.cpu(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.cuda
def test_a_captured_stack_equals_an_eager_one() -> None:
    eager, captured = (make_stack(device="cuda") for _ in range(2))
    step = CapturedStep(captured)
    for program, take in ((eager, eager.step), (captured, step)):
        program.shuffle()
        for _ in range(program.steps_per_epoch):
            take()
    found, expected = captured.readings().values, eager.readings().values
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(captured.tensors(), eager.tensors(), rtol=1e-4, atol=1e-5)
