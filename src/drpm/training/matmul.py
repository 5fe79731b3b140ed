"""How float32 matrices are multiplied while a run goes on.

Torch holds this for the whole process, so a run sets it and puts back what was there before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch


@contextmanager
def matmul_precision(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Multiply and convolve float32 numbers on a GPU like this, to the end of the block.

    Arguments:
        precision: ``highest`` for float32 throughout, ``high`` to allow TF32.
    """
    put_back = _remember()
    _set(precision, precision == "high")
    try:
        yield
    finally:
        put_back()


def _set(matmul: str, convolutions: bool) -> None:
    # The older of torch's two interfaces: all versions have it, and its compiler asks it.
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolutions


def _remember() -> Callable[[], None]:
    """What restores the present state."""
    try:
        before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        # Set through the newer interface, operation by operation, which the older one cannot
        # tell in its words.
        backends: Any = torch.backends
        cudnn = backends.cudnn
        parts = (backends.cuda.matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)
        values = [part.fp32_precision for part in parts]

        def put_back() -> None:
            for part, value in zip(parts, values, strict=True):
                part.fp32_precision = value

        return put_back
    return lambda: _set(*before)
