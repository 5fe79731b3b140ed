"""Archives of arrays, written and read without pickling anything."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drpm.training.errors import RunError


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An archive that :func:`read_archive` reads.

    Arguments:
        arrays: What it is to hold.
    """
    buffer = io.BytesIO()
    # Numpy has an option among the names of arrays, so that no type fits both.
    named: Any = arrays
    np.savez_compressed(buffer, **named)
    return buffer.getvalue()


def read_archive(path: Path, wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Arrays of an archive, in the order in which they stand in it; a missing file has none.

    Arguments:
        path: The file, as ``numpy.savez`` writes it.
        wanted: Whether to read the array of a name; the others are not touched.

    Raises:
        RunError: Where the file is damaged, or holds something else under a wanted name.
    """
    if not path.exists():
        return {}
    try:
        # Opened with allow_pickle=False, numpy refuses Python objects, whose loading runs code.
        # The file is opened here, because numpy does not close it where the archive is damaged.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files if wanted(name)}
        # Members that are no arrays come as bytes.
        if not all(isinstance(array, np.ndarray) for array in content.values()):
            raise ValueError("not an array")
    except Exception as error:
        # A damaged archive fails in as many ways as there are layers in it.
        raise RunError(
            f"The file {path} cannot be read as an archive of plain arrays; write it again with "
            "numpy.savez."
        ) from error
    return content
