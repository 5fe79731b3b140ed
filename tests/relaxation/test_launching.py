"""What the modules with kernels share, as far as it goes without a GPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from drpm.relaxation.launching import has_triton, launch, power_of_two
from drpm.relaxation.mapping import needs_plain, plain_gradients


@pytest.fixture(autouse=True)
def _ask_anew() -> None:
    has_triton.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    runtime = ModuleType("triton.runtime")
    runtime.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    assert not has_triton()


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler")

    pretend(monkeypatch, SimpleNamespace(active=SimpleNamespace(get_current_device=fail)))
    with pytest.warns(RuntimeWarning, match=r"cannot compile kernels here \(Failed to find C"):
        assert not has_triton()
    assert not has_triton()  # and says it once


def test_with_both_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0))
    pretend(monkeypatch, driver)
    assert has_triton()
    has_triton.cache_clear()


def test_nothing_is_launched_for_nothing() -> None:
    launch(None, (0, 3), torch.zeros(0))


def test_powers_of_two() -> None:
    assert [power_of_two(count) for count in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_plain_gradients_are_those_that_are_asked_for() -> None:
    a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(5.0)
    found = plain_gradients(lambda a, b: a * a * b, (a, b), (torch.tensor(2.0),))
    assert found[0] == 2 * 2 * 3 * 5
    assert found[0].requires_grad  # has derivatives of its own
    assert found[1] is None
    with torch.no_grad():
        (once,) = plain_gradients(lambda a: (a * a,), (a,), (torch.tensor(1.0),))
    assert once == 6
    assert not once.requires_grad


def test_when_a_backward_pass_has_to_be_plain() -> None:
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            seen.append(needs_plain(grad))
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Square.apply(x).sum(), x)
    torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
    torch.autograd.grad(Square.apply(x), x, torch.eye(3), is_grads_batched=True)
    assert seen == [False, True, True]
