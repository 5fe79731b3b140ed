"""Users' own data, told by the suffix of the file; a folder is a folder of images."""

from pathlib import Path

from drpm.data import array_files, image_folder, table_files
from drpm.data.errors import DataError
from drpm.data.tables import table
from drpm.data.types import Dataset, Device

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")

OPTIONS = ("label_column", "header", "image_size")


def looks_like_path(name: str | Path) -> bool:
    """Whether a name can only be meant as a path."""
    if not str(name):
        return False
    path = Path(name).expanduser()
    return path.exists() or path.suffix.lower() in SUFFIXES or len(path.parts) > 1


def load(
    path: Path,
    *,
    device: Device = "cpu",
    seed: int = 0,
    label_column: str | None = None,
    header: bool = True,
    image_size: int | tuple[int, int] | None = None,
) -> Dataset:
    """Load a file or a folder. Where it has no split of its own, `test` is `train`.

    Args:
        path: .npy, .npz, .csv, .parquet, or a folder of images.
        device: where the tensors go.
        seed: of no effect.
        label_column: of tables: the column that is the target; `label` where there is one.
        header: of csv files: whether the first line names the columns.
        image_size: of folders: the height and width to resize to.
    """
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    suffix = path.suffix.lower()
    given = {
        "label_column": label_column is not None,
        "header": not header,
        "image_size": image_size is not None,
    }
    for option, of in _OPTIONS_OF.items():
        if given[option] and ("folder" if path.is_dir() else suffix) not in of:
            raise DataError(f"{path} has no use for the option {option}.")
    if path.is_dir():
        dataset = image_folder.load_folder(path, image_size)
    elif suffix == ".csv":
        dataset = table(str(path), table_files.read_csv(path, header=header), label_column)
    elif suffix == ".parquet":
        dataset = table(str(path), table_files.read_parquet(path), label_column)
    elif suffix == ".npy":
        dataset = array_files.load_npy(path)
    elif suffix == ".npz":
        dataset = array_files.load_npz(path)
    else:
        raise DataError(
            f"{path} should be a folder of images or end in {', '.join(SUFFIXES[:-1])} or "
            f"{SUFFIXES[-1]}."
        )
    return dataset.to(device)


_OPTIONS_OF = {
    "label_column": (".csv", ".parquet"),
    "header": (".csv",),
    "image_size": ("folder",),
}
