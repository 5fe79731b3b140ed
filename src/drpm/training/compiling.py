"""Training steps compiled by torch or captured as a CUDA graph."""

import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any, Final, final

import torch

from drpm.training.checkpoint import State
from drpm.training.errors import RunError, memory_refusal, sentence
from drpm.training.program import Program

logger = logging.getLogger(__name__)

BACKEND: Final = "inductor"
# Gradients of padded products are slices, which fused optimizers reject.
_OPTIONS: Final[dict[str, Any]] = {"shape_padding": False}
_WARM_UPS: Final = 3


def compile_step(program: Program, backend: str | Callable[..., Any] = BACKEND) -> bool:
    """Compile a program's step and return True, or log the reason and return False.

    Takes one compiled step as a test and undoes it.
    """
    before = _snapshot(program)
    groups = program.optimizer.param_groups
    settings = [dict(group) for group in groups]
    parts = _parts(program)
    for name, plain in parts.items():
        # A graph break splits a single run's step, but would leave all of a stacked one uncompiled.
        whole = name == "_find_gradients"
        options = _OPTIONS if whole and backend == BACKEND else None
        kind: dict[str, Any] = {"backend": backend, "fullgraph": whole, "options": options}
        setattr(program, name, torch.compile(_with_own_code(plain), dynamic=False, **kind))
    try:
        program.rewind()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.step()
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        if memory_refusal(cause) is not None:
            raise cause from None
        # Errors of the objective itself are raised again by the uncompiled step.
        for name, plain in parts.items():
            setattr(program, name, plain)
        for group, was in zip(groups, settings, strict=True):
            group.update(was)
        logger.warning("The training step runs uncompiled. %s", sentence(cause))
        return False
    finally:
        program.load_state(before)
    return True


def _with_own_code(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function in its own code object, since torch limits compilations per code object."""

    def call(*arguments: Any) -> Any:
        return plain(*arguments)

    call.__code__ = call.__code__.replace()
    return call


def _parts(program: Program) -> dict[str, Callable[..., Any]]:
    """The methods of a program to compile, by name."""
    parts: dict[str, Callable[..., Any]] = {}
    if program.is_stacked:
        parts["_find_gradients"] = torch.no_grad()(program._find_gradients)
    else:
        parts["_evaluate"] = program._evaluate
    if program.schedules:
        parts["schedule_values"] = program.schedule_values
    groups = program.optimizer.param_groups
    if any(group.get("fused") for group in groups) and "capturable" in groups[0]:
        # The fused kernel uses blocks of 65,536 numbers and leaves most of a GPU idle.
        for group in groups:
            group.update(fused=False, foreach=True, capturable=True)
        # Unwrapped: the decorator's code is shared by all optimizers and soon reaches the limit.
        step, optimizer = inspect.unwrap(type(program.optimizer).step), program.optimizer
        parts["update"] = torch.no_grad()(lambda: step(optimizer))
    return parts


@final
class CapturedStep:
    """A program's step, captured once and replayed without Python overhead.

    Tensors keep their memory: batch order, counters and learning rate are changed in place.
    Capturing does not change the program.
    """

    def __init__(self, program: Program) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(program.generator)
        before = _snapshot(program)
        # Warm-up and capture use one stream, since gradients keep the stream of their first use.
        stream = torch.cuda.Stream(program.device)
        stream.wait_stream(torch.cuda.current_stream(program.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                program.rewind()
                program.step()
                program.load_state(before)
            groups = [group for group in program.optimizer.param_groups if "capturable" in group]
            before_capture = [group["capturable"] for group in groups]
            # Only while capturing, since it warns otherwise.
            for group in groups:
                group["capturable"] = True
            try:
                with torch.cuda.graph(self._graph, stream=stream):
                    program.step()
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                raise RunError(
                    f"The training step cannot be captured in a CUDA graph ({reason}); "
                    "run it with training.step=eager."
                ) from error
            finally:
                for group, was in zip(groups, before_capture, strict=True):
                    group["capturable"] = was
        torch.cuda.current_stream(program.device).wait_stream(stream)
        program.load_state(before)

    def __call__(self) -> None:
        self._graph.replay()


def _snapshot(program: Program) -> State:
    return {name: x.detach().clone() for name, x in program.state().items()}
