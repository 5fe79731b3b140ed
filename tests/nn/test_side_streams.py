"""Work beside other work is the same work."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor

from drpm import beside
from drpm.nn import TaskPartition, side_streams
from tests.oracles import generator

# Traces as inductor does, but calls torch's own operations.
TRACED = "aot_eager"


def waves(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        # What a compiled function does otherwise; here, so that it is seen.
        return (scale * x).sin(), x + 1
    return (scale * x).sin(), x.clone()


def through(x: Tensor) -> Tensor:
    begun = side_streams.begin(waves, x, 2.0)
    other = x.exp()
    wave, further = begun.wait()
    assert begun.wait()[0] is wave
    return (other * wave + further).sum()


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a GPU, though there is but one stream."""
    monkeypatch.setattr(side_streams, "worthwhile", lambda tensor: True)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_done_at_once_where_nothing_else_is_said() -> None:
    x = torch.randn(4, generator=generator(0))
    begun = side_streams.begin(waves, x, 2.0)
    assert begun.device is None
    with beside.allowed():
        assert side_streams.begin(waves, x, 2.0).device is None
    assert torch.equal(begun.wait()[0], (2 * x).sin())


@pytest.mark.usefixtures("everywhere")
def test_only_where_it_is_allowed() -> None:
    x = torch.randn(4, generator=generator(0))

    def begun_here() -> bool:
        return side_streams.begin(waves, x, 2.0).device is not None

    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(begun_here()))
    assert not begun_here()
    with beside.allowed():
        assert begun_here()
        thread.start()
        thread.join()
        with beside.allowed("eager"):
            assert beside.state.backend == "eager"
        assert beside.state.backend is None
        assert begun_here()
    assert not begun_here()
    assert elsewhere == [False]
    with pytest.raises(RuntimeError, match="in between"), beside.allowed():
        raise RuntimeError("in between")
    assert not begun_here()


# The compiler looks whether what comes in has a gradient; steps are compiled without warnings.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.usefixtures("everywhere")
def test_divided_where_it_is_compiled_and_whole_elsewhere() -> None:
    x = torch.randn(4, generator=generator(0), requires_grad=True)
    expected = (x.exp() * (2 * x).sin() + x + 1).sum()
    (slope,) = torch.autograd.grad(expected, x)
    whole = torch.compile(through, backend=TRACED, fullgraph=True)
    divided = torch.compile(through, backend=TRACED)
    for function, backend, count in ((whole, None, 1), (divided, TRACED, 3)):
        torch.compiler.reset()
        before = graphs()
        for _ in range(3):
            if backend is None:
                found = function(x)
            else:
                with beside.allowed(backend):
                    found = function(x)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(torch.autograd.grad(found, x)[0], slope)
        assert graphs() - before == count


def make_step(layer: TaskPartition) -> Any:
    def step(x: Tensor, temperature: Tensor) -> Tensor:
        layer.zero_grad()
        begun = layer.begin(temperature=temperature)
        weights = torch.arange(3.0, device=x.device)[:, None, None]
        features = x
        for _ in range(5):
            features = (features @ features.mT @ features).tanh()
        loss: Tensor = (layer(features, begun=begun) * weights).sum()
        loss.backward()
        return loss.detach()

    return step


@pytest.mark.cuda
def test_streams_of_a_gpu() -> None:
    """Eagerly and from a recording, many times over: memory that came back too early would show."""
    torch.manual_seed(0)
    layer = TaskPartition(64, 3).cuda()
    step = make_step(layer)
    x = torch.randn(256, 64, generator=generator(0)).cuda()
    temperature = torch.tensor(0.7, device="cuda")
    expected = step(x, temperature)
    slopes = [p.grad.clone() for p in layer.parameters() if p.grad is not None]

    def check(found: Tensor) -> None:
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([p.grad for p in layer.parameters()], slopes)

    with beside.allowed():
        assert layer.begin().work.device == x.device
        for _ in range(50):
            # A temperature that nobody holds on to.
            check(step(x, temperature * 1))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(x, temperature)
            with torch.cuda.graph(graph, stream=stream):
                found = step(x, temperature * 1)
        torch.cuda.current_stream().wait_stream(stream)
    for _ in range(50):
        found.zero_()
        graph.replay()
        check(found)


@pytest.mark.cuda
def test_a_recording_without_gradients() -> None:
    layer, x = TaskPartition(6, 3).cuda(), torch.randn(4, 6).cuda()
    with torch.no_grad(), beside.allowed():
        expected = layer(x, begun=layer.begin())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x, begun=layer.begin())
            # One that no features come for.
            layer.begin().wait()
    graph.replay()
    torch.testing.assert_close(found, expected)
