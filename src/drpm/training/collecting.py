"""What is kept of finished studies: settings and results, without models and checkpoints."""

import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from drpm.training.checkpoint import write_atomic
from drpm.training.errors import RunError, reason
from drpm.training.runs import ARRAYS, CONFIG, RESULT, RunFolder

ARCHIVE: Final = ".tar.gz"

# As other archives end, which a folder is hardly meant to.
_OTHER_ARCHIVES: Final = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")

# A picture's worth of arrays, for one seed of every study of our own models, may come along; more
# may not.
_ARRAYS_SEED: Final = "seed-0"
_ARRAYS_OF: Final = "drpm"
_ARRAYS_BYTES: Final = 1_000_000


def collect(source: Path, name: str, studies: Sequence[str], target: Path) -> list[str]:
    """Copy the settings and results of what is finished, as ``name/study/seed-...``.

    Arguments:
        source: The folder of a sweep.
        name: The sweep's name.
        studies: Its studies.
        target: A folder, to which the files are added, or an archive that ends in ``.tar.gz`` and
            has the same bytes whenever it is made of the same files.

    Returns:
        What was copied, by its path in the target.
    """
    if target.suffix.lower() in _OTHER_ARCHIVES and not target.name.endswith(ARCHIVE):
        raise RunError(
            f"What is collected must go into a folder or a file that ends in {ARCHIVE}, but got "
            f"{str(target)!r}."
        )
    found = {
        str(Path(name) / path.relative_to(source)): path
        for study in studies
        for path in _files(source / study)
    }
    if not found:
        raise RunError(f"The folder {source} holds no finished run of {name!r} to collect.")
    if target.name.endswith(ARCHIVE):
        _pack(found, target)
    else:
        for relative, path in found.items():
            # Refused where a link in the target leads out of it.
            _write(RunFolder(target).inside(relative), path.read_bytes())
    return list(found)


def _files(study: Path) -> Iterator[Path]:
    if RunFolder(study).status == "finished":
        yield study / RESULT
    runs = sorted(study.rglob("seed-*"))
    if not runs and RunFolder(study).status == "finished":
        yield study / CONFIG  # it is the run itself
    for run in runs:
        if RunFolder(run).status != "finished":
            continue
        yield run / CONFIG
        yield run / RESULT
        arrays = run / ARRAYS
        folders = (study.name, *run.relative_to(study).parts)
        ours = any(folder.startswith(_ARRAYS_OF) for folder in folders)
        if (
            ours
            and run.name == _ARRAYS_SEED
            and arrays.exists()
            and arrays.stat().st_size < _ARRAYS_BYTES
        ):
            yield arrays


def _pack(found: dict[str, Path], target: Path) -> None:
    buffer = io.BytesIO()
    # Neither owners nor times: the same files make the same archive.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for relative in sorted(found):
            content = found[relative].read_bytes()
            entry = tarfile.TarInfo(relative)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    _write(target, buffer.getvalue())


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise RunError(f"The file {path} was not written, because {reason(error)}.") from error
