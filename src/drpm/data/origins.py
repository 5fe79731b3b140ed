"""Which files the examples of somebody's own data came from."""

from pathlib import Path

from drpm.data.errors import DataError
from drpm.data.image_folder import image_paths
from drpm.data.registry import DATASETS


def file_names(name: str, count: int) -> list[str]:
    """The file of every example of a folder of images; none of any other data.

    Arguments:
        name: Of a data set, or a path.
        count: How many examples were read.
    """
    folder = Path(name).expanduser()
    if name in DATASETS or not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in image_paths(folder)]
    if len(names) != count:
        raise DataError(f"The folder {folder} has changed while it was read; try again.")
    return names
