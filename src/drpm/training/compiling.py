"""Compiling a training step."""

import logging
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from drpm.training.backends import sentence
from drpm.training.devices import require_step
from drpm.training.graphs import snapshot
from drpm.training.program import BaseProgram, Program

logger = logging.getLogger(__name__)

BACKEND: Final = "inductor"


def compile_step(program: BaseProgram, backend: str | Callable[..., Any] = BACKEND) -> bool:
    """Compile a program's loss and gradient, or say in one line why that is not possible.

    The optimiser, which is one kernel on CUDA, is left as it is. Trying the compiled form out
    takes a step that is undone, so that the program stays as it was.

    Arguments:
        program: One run, or stacked runs.
        backend: The compiler, as ``torch.compile`` takes it.

    Returns:
        Whether it is compiled now.
    """
    require_step("compile", program.device, program.devices.count)
    # Torch gives up on a function that it has compiled a few times, and all programs share theirs.
    torch.compiler.reset()
    before = snapshot(program.state())
    part, plain = _part(program)
    # Every shape stays as it is, so that nothing need be compiled for shapes in general.
    setattr(program, part, torch.compile(plain, backend=backend, dynamic=False))
    compiled = True
    try:
        # A run that was saved at the end of an epoch has no next batch yet.
        program.rewind()
        with warnings.catch_warnings():
            # What the compiler meets inside torch is no concern of whoever trains a model.
            warnings.simplefilter("ignore")
            program.step()
    except Exception as error:
        # Whatever it is: where it is not the compiler's fault, the plain step fails as well.
        setattr(program, part, plain)
        compiled = False
        why = sentence(getattr(error, "inner_exception", error))
        logger.warning("The training step goes on without being compiled. %s", why)
    program.load_state(before)
    return compiled


def _part(program: BaseProgram) -> tuple[str, Callable[..., Any]]:
    """What of a program is compiled: the name of its attribute, and the function.

    The backward pass of one run is not a function that the compiler could be given, but comes
    out compiled with the forward pass. That of stacked runs is inside their function.
    """
    if isinstance(program, Program):
        return "_evaluate", program._evaluate
    # Nobody differentiates through their gradients, so nothing is to be recorded for that.
    return "_differentiate", torch.no_grad()(program._differentiate)
