"""Image files, opened through pillow, with what is wrong with them refused."""

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drpm.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

# What the decoders of pillow raise on damaged files.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)


@contextmanager
def picture(path: Path) -> "Iterator[Image]":
    """An open image, whose pixels are decoded inside the block."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise  # a ValueError that already names the file
    except (Image.DecompressionBombError, MemoryError) as error:
        raise DataError(f"{path} is too large an image to be read ({_reason(error)}).") from error
    except _DAMAGED as error:
        raise DataError(f"{path} is not a whole image ({_reason(error)}).") from error


@contextmanager
def without_warnings() -> Iterator[None]:
    """Pillow's warnings, of large images or odd remarks in them, are not passed on.

    What it refuses stays refused. For the whole of a loop, because threads share what is warned of.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
