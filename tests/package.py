"""Build the package and try it as a user would: ``make dist``.

Builds the sdist and the wheel into ``dist``, checks their metadata and content, installs the wheel
in an empty environment, and runs the examples of the README and a short clustering there.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata

import drpm

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# Files besides modules that the package reads.
CONTENT = (
    "py.typed",
    "data/catalogue.toml",
    "presets/fast-cluster.toml",
    "report/templates/explore.html",
    "report/templates/page.html",
)
EXTRAS = {"dev", "distributed", "docs", "parquet", "ray", "tensorboard", "torchjd", "vision"}


def call(*command: object, folder: Path) -> None:
    print("$", *command, flush=True)
    subprocess.run(list(map(str, command)), cwd=folder, check=True)


def check_wheel(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(place), validate=True)
    expect("version", str(metadata.version), drpm.__version__)
    expect("license", metadata.license_expression, "Apache-2.0")
    expect("extras", set(metadata.provides_extra or ()), EXTRAS)
    missing = [name for name in CONTENT if f"drpm/{name}" not in names]
    expect("missing files", missing, [])
    expect("files outside of drpm", [x for x in names if not x.startswith("drpm")], [])


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expect("sdist", {"LICENSE", "README.md", "pyproject.toml"} - names, set())


def expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise SystemExit(f"{what} must be {expected}, but got {found}.")


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    call(sys.executable, "-m", "build", "--no-isolation", folder=ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        install = ("-m", "pip", "--disable-pip-version-check", "install", "-q")
        call(python, *install, "-c", ROOT / "constraints.txt", wheel, folder=folder)
        shutil.copy(ROOT / "README.md", folder)
        call(python, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", "README.md", folder=folder)
        few = [f"--set={stage}.epochs=1" for stage in ("training", "pretraining.training")]
        call(python.with_name("drpm"), "cluster", "digits", *few, folder=folder)
    print(f"{wheel.name} and {sdist.name} are in {DIST}.")


if __name__ == "__main__":
    main()
