"""Replaying a training step as a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import torch
from torch import Tensor

from drpm.training.devices import require_step
from drpm.training.errors import RunError
from drpm.training.program import BaseProgram

_WARM_UPS: Final = 3


@final
class CapturedStep:
    """A program's step, captured once and replayed without the overhead of Python.

    The tensors of a step keep their memory; what changes between replays (batch order, counters,
    learning rate) is changed in place. Capturing does not change the program.
    """

    def __init__(self, program: BaseProgram) -> None:
        require_step("graph", program.device, program.devices.count)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(program.generator)
        before = snapshot(program.state())
        # Warm-up and capture share a stream: gradients keep the stream of their first use.
        stream = torch.cuda.Stream(program.device)
        stream.wait_stream(torch.cuda.current_stream(program.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                # A checkpoint at the end of an epoch has no next batch.
                program.rewind()
                program.step()
                program.load_state(before)
            try:
                with _capturable(program.optimizer), torch.cuda.graph(self._graph, stream=stream):
                    program.step()
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                raise RunError(
                    f"The training step cannot be captured in a CUDA graph ({reason}); "
                    "run it with training.step=eager."
                ) from error
        torch.cuda.current_stream(program.device).wait_stream(stream)
        program.load_state(before)

    def __call__(self) -> None:
        self._graph.replay()


@contextmanager
def _capturable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Mark the optimizer as capturable; marked all the time, it would warn elsewhere."""
    groups = [group for group in optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, was in zip(groups, before, strict=True):
            group["capturable"] = was


def snapshot(state: Any) -> Any:
    """A deep copy of a state, detached."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, list):
        return [snapshot(value) for value in state]
    return state
