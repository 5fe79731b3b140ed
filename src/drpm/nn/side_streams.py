"""Work on a GPU that goes on beside other work, where :func:`drpm.beside.allowed` says so.

Many small kernels one after another leave a GPU idle. On a stream of their own they cost hardly
any time, as long as there is something else to do. In a step that is captured they are a branch
of its graph. So is their backward pass, because autograd takes it on the stream of the forward
pass, and waits for all streams before it returns. One partition among 40 tasks, in a step that is
compiled and captured, adds about a tenth to it on an H200, and more than a third where it is made
before the features.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from drpm.beside import Backend, state

Result = TypeVar("Result", bound=tuple[Tensor, ...])


class _Streams(threading.local):
    """Those of one thread: one that two of them shared would mix up their recordings."""

    def __init__(self) -> None:
        self.of: dict[torch.device, torch.cuda.Stream] = {}


_streams = _Streams()


class Begun(Generic[Result]):
    """What a function returns; on a GPU it may still have to be waited for.

    Arguments:
        result: The tensors.
        device: Whose side stream makes them; none where there is nothing to wait for.
    """

    def __init__(self, result: Result, device: torch.device | None = None) -> None:
        self.result, self.device = result, device

    def wait(self) -> Result:
        """The tensors, for use on the current stream. Once is enough, but once it must be: a
        recording that ends before is refused."""
        if self.device is not None:
            _join(self, self.device)
            self.device = None
        return self.result


def begin(function: Callable[..., Result], leader: Tensor, *arguments: Any) -> Begun[Result]:
    """Call a function, where it is allowed and worth it on a side stream.

    Arguments:
        function: One that lasts as long as the process does, for it may be compiled. It returns
            a tuple of tensors.
        leader: Its first argument, on whose device it works.
        arguments: The others.
    """
    if state.allowed and worthwhile(leader):
        begun: Begun[Result] = _fork(function, leader, *arguments)
        return begun
    return Begun(function(leader, *arguments))


def worthwhile(tensor: Tensor) -> bool:
    return tensor.is_cuda


# What is compiled runs on one stream. So it is divided here and where the work is waited for, and
# the work itself is compiled on its own.


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _fork(function: Callable[..., Result], leader: Tensor, *arguments: Any) -> Begun[Result]:
    if state.backend is not None:
        function = _compiled(function, state.backend)
    side = _side_stream(leader.device)
    if side is None:
        return Begun(function(leader, *arguments), leader.device)
    side.wait_stream(torch.cuda.current_stream(leader.device))
    with torch.cuda.stream(side):
        result = function(leader, *arguments)
    for given in (leader, *arguments):
        # Freed early, its memory would be given to whoever asks on the stream that it came from.
        if isinstance(given, Tensor) and given.is_cuda:
            given.record_stream(side)
    return Begun(result, leader.device)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _join(begun: Begun[Any], device: torch.device) -> None:
    side = _side_stream(device)
    if side is None:
        return
    current = torch.cuda.current_stream(device)
    current.wait_stream(side)
    for made in begun.result:
        made.record_stream(current)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The same one for ever: gradients remember the stream of their first use."""
    if device.type != "cuda":
        return None
    if device not in _streams.of:
        # Torch hands out its usual streams in turn. Of this kind nobody else is given one, and
        # small kernels do not queue behind large ones.
        _streams.of[device] = torch.cuda.Stream(device, priority=-1)
    return _streams.of[device]


@cache
def _compiled(function: Callable[..., Result], backend: Backend) -> Callable[..., Result]:
    compiled: Callable[..., Result] = torch.compile(function, backend=backend, dynamic=False)
    return compiled
