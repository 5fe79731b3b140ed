"""What all modules with Triton kernels need: whether they can run, and launching them."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be compiled here: Triton comes with torch, a C compiler may not."""
    try:
        from triton.runtime import driver

        driver.active.get_current_device()  # builds its connection to the device
    except ImportError:
        return False
    except Exception as error:
        warnings.warn(
            f"Triton cannot compile kernels here ({error}), so partitions on a GPU are drawn by "
            "many small operations instead, which is slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *args: Any, **options: Any) -> None:
    """Run a kernel on the device of a tensor, whichever device is the current one."""
    if not grid[0]:
        return
    with torch.cuda.device_of(like):
        kernel[grid](*args, **options)


def power_of_two(count: int) -> int:
    """The smallest that is not less than a count."""
    return 1 << max(0, count - 1).bit_length()
