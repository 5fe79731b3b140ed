"""Tasks share a layer's neurons: what each of them sees, and that the split is learned."""

import copy
import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drpm.nn import TaskPartition, size_penalty
from tests.oracles import generator


def make(**options: Any) -> TaskPartition:
    torch.manual_seed(0)
    return TaskPartition(6, 3, **options)


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, 6, generator=generator(1))


@pytest.mark.parametrize("shape", [(), (4,), (2, 4)])
@pytest.mark.parametrize("hard", ["sizes", True, False])
def test_copies_share_out_the_features(shape: tuple[int, ...], hard: Any) -> None:
    layer, x = make(hard=hard), features(*shape)
    split = layer.split(x)
    assert split.features.shape == split.masks.shape == (3, *shape, 6)
    torch.testing.assert_close(split.features, x * split.masks)
    torch.testing.assert_close(layer(x), split.features)
    one, two, three = layer(x)
    torch.testing.assert_close(torch.stack([one, two, three]), split.features)
    if hard is True:
        assert ((split.masks == 0) | (split.masks == 1)).all()
        torch.testing.assert_close(split.masks.sum(0), torch.ones(*shape, 6))
        torch.testing.assert_close(split.features.sum(0), x)
    torch.testing.assert_close(split.masks.sum(-1).movedim(0, -1), split.sizes.expand(*shape, 3))


def test_a_partition_for_every_sample() -> None:
    layer = make(in_features=5, hard=True)
    x, context = features(8), torch.randn(8, 5, generator=generator(2))
    with torch.no_grad():
        layer.law.log_weights.weight.mul_(10)
    split = layer.split(x, context)
    assert split.sizes.shape == (8, 3)
    torch.testing.assert_close(split.masks.sum(-1).mT, split.sizes)
    assert len(split.masks.movedim(0, 1).flatten(1).unique(dim=0)) > 1
    turned = layer.split(x.flip(0), context.flip(0))
    torch.testing.assert_close(turned.features, split.features.flip(1))
    torch.testing.assert_close(layer.sizes(context), split.sizes)
    # It is that of the head's law without noise.
    torch.testing.assert_close(split.masks.movedim(0, 1), layer.law(context).mode)


def test_noise_only_where_asked_for_and_in_training() -> None:
    x = features(4)
    plain, sampled = make(hard=True), make(hard=True, sampled=True)
    assert torch.equal(plain(x), plain(x))

    def draws(layer: TaskPartition) -> int:
        return len({tuple(layer.split(x).masks.flatten().tolist()) for _ in range(20)})

    assert draws(sampled) > 1
    # Of sizes, not only of the order.
    assert len({tuple(sampled.split(x).sizes.tolist()) for _ in range(20)}) > 1
    assert draws(sampled.eval()) == 1
    sampled.train()
    one, two = (sampled(x, generator=generator(5)) for _ in range(2))
    assert torch.equal(one, two)
    # One draw serves all samples of a batch, unless partitions are predicted.
    masks = sampled.split(x).masks
    assert (masks == masks[:, :1]).all()
    predicted = make(hard=True, sampled=True, in_features=5)
    masks = predicted.split(features(20), torch.zeros(20, 5)).masks
    assert (masks != masks[:, :1]).any()


def test_temperature_may_be_set_anew() -> None:
    layer, x = make(), features(4)
    before = layer.split(x).masks
    layer.temperature = 0.01
    assert layer.temperature == pytest.approx(0.01)
    after = layer.split(x).masks
    # Colder is harder.
    assert after.amax(0).mean() > before.amax(0).mean()
    torch.testing.assert_close(layer.split(x, temperature=1.0).masks, before)
    with pytest.raises(ValueError, match=r"temperature must be a positive number, but got -1"):
        layer.temperature = -1


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.tensor(-0.5), "-0.5"),
        (torch.tensor(True), "True"),
        (torch.tensor(1j), "a complex"),
        (torch.ones(2), "a tensor of shape (2,) and type torch.float32"),
        (np.float32("nan"), "nan"),
        (np.bool_(True), "True"),
        (True, "True"),
    ],
)
def test_other_temperatures_leave_the_layer_as_it_is(value: Any, got: str) -> None:
    layer = make(temperature=0.7)
    sentence = f"temperature must be a positive number, but got {got}."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        layer.temperature = value
    assert layer.temperature == pytest.approx(0.7)


@pytest.mark.parametrize("in_features", [None, 5])
def test_saved_and_loaded(in_features: int | None) -> None:
    layer = make(in_features=in_features)
    layer.temperature = 0.5
    torch.manual_seed(1)
    other = TaskPartition(6, 3, in_features=in_features)
    other.load_state_dict(layer.state_dict())
    x = features(4)
    context = None if in_features is None else torch.randn(4, 5, generator=generator(2))
    torch.testing.assert_close(other(x, context), layer(x, context))
    torch.testing.assert_close(copy.deepcopy(layer)(x, context), layer(x, context))


@pytest.mark.parametrize("in_features", [None, 5])
def test_stacked_and_compiled(in_features: int | None) -> None:
    """As training stacks models: their parameters along a leading axis."""
    layers = [TaskPartition(6, 3, in_features=in_features) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = features(4)
    arguments = (x,) if in_features is None else (x, torch.randn(4, 5, generator=generator(2)))

    def one(parameters: Any, buffers: Any) -> Tensor:
        result: Tensor = torch.func.functional_call(layers[0], (parameters, buffers), arguments)
        return result

    expected = torch.stack([layer(*arguments) for layer in layers])
    torch.testing.assert_close(torch.vmap(one)(parameters, buffers), expected)
    compiled = torch.compile(layers[0], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), expected[0])


def test_gradients_reach_scores_and_weights() -> None:
    layer = make()
    loss = (layer(features(4)) * torch.randn(3, 4, 6, generator=generator(3))).sum()
    loss.backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


# The order of tasks.


@pytest.mark.parametrize("in_features", [None, 64])
def test_the_first_and_the_last_task_have_the_clearest_neurons(in_features: int | None) -> None:
    """The numbers of docs/multitask.md: five tasks of eight neurons each, at fresh scores."""
    clearness = []
    for seed in range(100):
        torch.manual_seed(seed)
        layer = TaskPartition(40, 5, in_features=in_features)
        context = None if in_features is None else torch.rand(1, in_features)
        with torch.no_grad():
            for weights in layer.law.log_weights.parameters() if in_features else ():
                weights.zero_()
            split = layer.split(torch.ones(1, 40), context)
        assert split.sizes.flatten().tolist() == [8] * 5
        # How much of the neurons that are above all its own a task has.
        clearness.append(split.masks[:, 0].topk(8).values.mean(-1))
    first, *middle, last = torch.stack(clearness).mean(0).tolist()
    # The standard error of each is 0.005 (of 400 seeds); the gap is 0.16.
    assert min(first, last) > max(middle) + 0.1
    assert (first + last) / 2 == pytest.approx(0.73, abs=0.03)
    assert sum(middle) / 3 == pytest.approx(0.56, abs=0.03)


# The regularizer.


def test_the_penalty_of_sizes() -> None:
    sizes = torch.tensor([[3.0, 2.0, 1.0], [6.0, 0.0, 0.0]], requires_grad=True)
    expected = [math.log(6 * 2), math.log(720)]
    torch.testing.assert_close(size_penalty(sizes), torch.tensor(expected))
    size_penalty(sizes).sum().backward()
    torch.testing.assert_close(sizes.grad, torch.digamma(sizes.detach() + 1))


# Refusals.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_features": 0}, "num_features must be an integer of at least 1, but got 0."),
        ({"num_tasks": 1.5}, "num_tasks must be an integer of at least 1, but got 1.5."),
        ({"in_features": 0}, "in_features must be an integer of at least 1, but got 0."),
        (
            {"num_tasks": 7},
            "num_features must be at least num_tasks, 7, one neuron for each task, but got 6.",
        ),
        ({"hard": "soft"}, "hard must be"),
        ({"sampled": 1}, "sampled must be"),
        ({"temperature": 0}, "temperature must be a positive number, but got 0."),
    ],
)
def test_bad_settings(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        TaskPartition(**{"num_features": 6, "num_tasks": 2, **options})


def test_bad_inputs() -> None:
    with pytest.raises(ValueError, match="features must be a floating-point tensor with 6 entries"):
        make()(torch.zeros(4, 5))
    with pytest.raises(ValueError, match="context must be omitted without in_features"):
        make()(features(4), torch.zeros(4, 5))
    layer = make(in_features=5)
    for context in (None, torch.zeros(4, 6), torch.zeros(4, 5).long(), [1.0] * 5):
        for ask in (layer.sizes, partial(layer, features(4))):
            with pytest.raises(ValueError, match=r"^context must be a floating.* with 5 entries"):
                ask(context)


def test_a_context_for_other_rows() -> None:
    """As many rows of one kind as of the other would fit each other by accident."""
    layer = make(in_features=5)
    with pytest.raises(ValueError, match=r"batch shape of features, \(4, 4\), but got"):
        layer(features(4, 4), torch.zeros(4, 5))
    assert layer(features(4, 4), torch.zeros(4, 4, 5)).shape == (3, 4, 4, 6)


@pytest.mark.parametrize("in_features", [None, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None])
def test_sizes_are_whole_in_low_precision(
    dtype: torch.dtype | None, in_features: int | None
) -> None:
    """Beyond 256 bfloat16 has only every other number; without a type autocast has it."""
    layer = TaskPartition(1001, 3, in_features=in_features)
    inputs = [torch.randn(4, count) for count in (1001, in_features) if count is not None]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is None):
        split = layer.to(dtype).split(*(x.to(dtype) for x in inputs))
    if dtype is not None:
        assert split.features.dtype == split.masks.dtype == dtype
    # In a low precision itself, 1001 would pass for its neighbours.
    sizes = split.sizes.double()
    assert (sizes == sizes.round()).all()
    assert (sizes.sum(-1) == 1001).all()
    split.features.float().square().mean().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.cuda
@pytest.mark.parametrize("in_features", [None, 5])
def test_in_a_cuda_graph(in_features: int | None) -> None:
    """Arguments are checked everywhere else; looking at them would end a recording."""
    layer = make(in_features=in_features).cuda()
    x = features(8).cuda()
    context = None if in_features is None else torch.randn(8, 5, generator=generator(2)).cuda()
    inputs = (x,) if context is None else (x, context)
    expected = layer(*inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            layer(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(*inputs)
    graph.replay()
    torch.testing.assert_close(found, expected)
