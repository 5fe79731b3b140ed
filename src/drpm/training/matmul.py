"""The precision of float32 matrix products during a run.

Torch has one setting for the whole process, so a run sets it and restores it afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch


@contextmanager
def matmul_precision(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Set the precision of float32 products and convolutions on a GPU within the block.

    Args:
        precision: ``highest`` for float32, ``high`` to allow TF32.
    """
    restore = _remember()
    _set(precision, precision == "high")
    try:
        yield
    finally:
        restore()


def _set(matmul: str, convolutions: bool) -> None:
    # The older of torch's two interfaces, which all versions have and the compiler reads.
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolutions


def _remember() -> Callable[[], None]:
    """A function that restores the present setting."""
    try:
        before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        # Set through the newer interface, one operation at a time.
        backends: Any = torch.backends
        cudnn = backends.cudnn
        parts = (backends.cuda.matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)
        values = [part.fp32_precision for part in parts]

        def restore() -> None:
            for part, value in zip(parts, values, strict=True):
                part.fp32_precision = value

        return restore
    return lambda: _set(*before)
