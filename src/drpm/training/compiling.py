"""Compiling a training step."""

import logging
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from drpm.training.devices import require_step
from drpm.training.errors import memory_refusal, sentence
from drpm.training.graphs import snapshot
from drpm.training.program import BaseProgram, Program
from drpm.training.stacking import StackedProgram

logger = logging.getLogger(__name__)

BACKEND: Final = "inductor"
# Rows are filled up to a multiple of 16 bytes. For stacked products of others cuBLAS has only slow
# kernels: five autoencoders with ten latent dimensions take 615 instead of 656 us a step on an
# H200. Where all large weights fit, so that only small products are left to be filled up, it costs
# more than it saves: DRPM-VC with twenty of them took 972 instead of 932 us.
_PADDED: Final[dict[str, Any]] = {"force_shape_pad": True}
# Left to itself, the compiler fills up what it finds quicker so in a measurement of its own.
_NOT_PADDED: Final[dict[str, Any]] = {"shape_padding": False}
_ALIGNED: Final = 4  # numbers of 4 bytes
_LARGE: Final = 1 << 14


def compile_step(program: BaseProgram, backend: str | Callable[..., Any] = BACKEND) -> bool:
    """Compile a program's step, or say in one line why that is not possible.

    Trying the compiled form out takes a step that is undone, so that the program stays as it was.

    Arguments:
        program: One run, or stacked runs.
        backend: The compiler, as ``torch.compile`` takes it.

    Returns:
        Whether it is compiled now.
    """
    require_step("compile", program.device, program.devices.count)
    before = snapshot(program.state())
    groups = program.optimizer.param_groups
    settings = [dict(group) for group in groups]
    parts = _parts(program)
    for name, plain in parts.items():
        # What cannot be followed splits one run's step in two. That of stacked runs would go on
        # uncompiled, and nobody would know.
        whole = name == "_find_gradients"
        # Every shape stays as it is, so that nothing need be compiled for shapes in general.
        compiled_part = torch.compile(
            _with_own_code(plain),
            backend=backend,
            dynamic=False,
            fullgraph=whole,
            options=_padding(program, "update" in parts) if whole and backend == BACKEND else None,
        )
        setattr(program, name, compiled_part)
    if isinstance(program, Program):
        program.backend = backend
    compiled = True
    try:
        # A run that was saved at the end of an epoch has no next batch yet.
        program.rewind()
        with warnings.catch_warnings():
            # What the compiler meets inside torch is no concern of whoever trains a model.
            warnings.simplefilter("ignore")
            program.step()
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        if memory_refusal(cause) is not None:
            # Not for the compiler's sake: whoever shares the memory may give it back.
            raise cause from None
        # Whatever else it is: where it is not the compiler's fault, the plain step fails as well.
        for name, plain in parts.items():
            setattr(program, name, plain)
        if isinstance(program, Program):
            program.backend = None
        for group, was in zip(groups, settings, strict=True):
            group.update(was)
        compiled = False
        logger.warning("The training step goes on without being compiled. %s", sentence(cause))
    program.load_state(before)
    return compiled


def _with_own_code(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under code of its own.

    Torch gives up on code that it has compiled a few times, and all programs share theirs.
    """

    def call(*arguments: Any) -> Any:
        return plain(*arguments)

    call.__code__ = call.__code__.replace()
    return call


def _padding(program: BaseProgram, updates_compiled: bool) -> dict[str, Any] | None:
    """Options of the compiler for the gradients of stacked runs, by what takes their steps."""
    if not updates_compiled:
        # Gradients of padded products are slices of larger tensors, which fused optimisers refuse
        # and compiled ones take.
        return _NOT_PADDED
    return _PADDED if has_uneven_weights(program) else None


def has_uneven_weights(program: BaseProgram) -> bool:
    """Whether some large matrix of each stacked run has a side that is no multiple of 16 bytes."""
    matrices = (x[0] for x in program.tensors().values() if x.dim() == 3)
    return any(x.numel() >= _LARGE and any(side % _ALIGNED for side in x.shape) for x in matrices)


def _parts(program: BaseProgram) -> dict[str, Callable[..., Any]]:
    """What of a program is compiled: the names of its attributes, and the functions.

    The backward pass of one run is not a function that the compiler could be given, but comes
    out compiled with the forward pass. That of stacked runs is inside their function.
    """
    parts: dict[str, Callable[..., Any]] = {}
    if isinstance(program, Program):
        parts["_evaluate"] = program._evaluate
    elif isinstance(program, StackedProgram):
        # Nobody differentiates through their gradients, so nothing is to be recorded for that.
        parts["_find_gradients"] = torch.no_grad()(program._find_gradients)
    if program.schedules:
        parts["schedule_values"] = program.schedule_values
    groups = program.optimizer.param_groups
    if any(group.get("fused") for group in groups) and "capturable" in groups[0]:
        # The fused kernel works on 65,536 numbers a block, which leaves most of a GPU idle.
        for group in groups:
            group.update(fused=False, foreach=True, capturable=True)
        parts["update"] = program.update
    return parts
