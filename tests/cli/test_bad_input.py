"""Bad input from the command line: one clear sentence, an exit code, no traceback.

A row is a command and what its sentence must contain: what was wrong and what was given. Commands
run in a folder of bad files, which `bad_files` writes.
"""

import gzip
import pickle
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from PIL import Image

from examples import digits
from tests.cli.commands import drpm
from tests.data.formats import idx_bytes, png_start, write_mnist
from tests.processes import python

REFUSED = [
    # Users' own tables.
    ("drpm data show nothing.csv", "nothing.csv does not exist"),
    ("drpm data show empty.csv", "empty.csv is empty"),
    ("drpm data show header.csv", "header.csv should have 2 or more rows", "has 0 and"),
    ("drpm data show numbers.csv", "should name its columns", "-o header=false"),
    ("drpm data show words.csv", "other values in a ('x')", "-o label_column=NAME"),
    ("drpm data show gaps.csv", "missing or infinite values in a:"),
    ("drpm data show ragged.csv", "ragged.csv", "Expected 2 fields in line 3, saw 3"),
    ("drpm data show twice.csv", "more than one column named 'a'"),
    ("drpm data show nameless.csv", "no name for its column 2"),
    ("drpm data show good.csv -o label_column=kind", "no column 'kind'", "columns are a, b"),
    ("drpm data show labels.csv", "has 2 and 0"),
    ("drpm data show image.csv", "not a text file in UTF-8"),
    ("drpm data show vast.csv", "vast.csv has numbers too large", "in a:"),
    ("drpm data show wrong.parquet", "wrong.parquet"),
    # Users' own arrays.
    ("drpm data show cut.npz", "cut.npz"),
    ("drpm data show flipped.npz", "flipped.npz cannot be read"),
    ("drpm data show huge.npy", "huge.npy cannot be read", "Unable to allocate"),
    ("drpm data show dates.npy", "dates.npy", "other values in column 1 ('1970-01-01"),
    ("drpm data show pickle.npy", "pickle.npy"),
    ("drpm data show text.npy", "text.npy should contain a table"),
    # Folders of images.
    ("drpm data show file.xyz", "file.xyz", "end in .npy, .npz, .csv"),
    ("drpm data show folder", "folder should contain images"),
    ("drpm data show damaged", "bad.png cannot be read as an image"),
    ("drpm data show huge", "a.png cannot be read as an image"),
    ("drpm data show sizes", "b.png has 3x2 pixels, but a.png has 2x2", "-o image_size=N"),
    ("drpm data show damaged -o image_size=0", "image_size must be", "not 0"),
    # Data sets by name.
    ("drpm data show minst", "Unknown data set 'minst'", "did you mean mnist"),
    ("drpm data check zzz", "Unknown data set 'zzz'", "there are digits"),
    ("drpm data show fashion-mnist", "train-images-idx3-ubyte", "(N, 28, 28), but"),
    ("drpm data check mnist", "train-images-idx3-ubyte", "damaged"),
    ("drpm data check fashion-mnist", "t10k-labels-idx1-ubyte.gz is damaged (cannot be read"),
    ("drpm data show digits -o noise", "name=value, but got 'noise'"),
    ("drpm data show arm -o num_trian=3", "no option 'num_trian'", "did you mean num_train"),
    ("drpm data show digits --out file.xyz/a.png", "file.xyz: File exists"),
    ("drpm data show digits --out sheet.foo", "--out must end with .png, but got sheet.foo"),
    # Settings of a run.
    ("drpm cluster good.csv --clusters 4 --out run", "clusters must be", "3, but got 4"),
    ("drpm cluster digits --clusters 3 --set clusters=4 --out run", "clusters must be given once"),
    ("drpm cluster digits --preset typo.toml --out run", "In typo.toml", "did you mean clusters?"),
    ("drpm supervised digits --preset zzz --out run", "'zzz' is not a preset", "fast-supervised"),
    ("drpm cluster digits --method vaed --out run", "method must be 'drpm-vc'", "got 'vaed'"),
    ("drpm cluster digits --set pretraining.training.epochs=-1 --out run", "epochs must", "'-1'"),
    ("drpm cluster digits --set bata=1 --out run", "bata is not a setting; did you mean beta?"),
    ("drpm cluster digits --set network.encoder= --out run", "network.encoder must have at least"),
    ("drpm cluster digits --set temperature=1,-1 --out run", "temperature[1] must be", "-1"),
    ("drpm supervised digits --set training.devices=2 --out run", "devices must be 1", "got 2"),
    ("drpm cluster good.csv --clusters 2 --set pretraining.views=mnist --out run", "'mnist'"),
    ("drpm cluster good.csv --clusters 2 --set likelihood=bernoulli --out run", "in [0, 1]"),
    ("drpm cluster digits --seeds a --out run", "seeds must be integers", "but got 'a'"),
    ("drpm cluster digits --seeds 1,01 --out run", "seeds must be distinct, but got '1,01'"),
    ("drpm cluster digits --seeds -1 --out run", "seeds must be integers", "got '-1'"),
    ("drpm cluster digits --device gpu --out run", "error: device must be 'auto'", "got 'gpu'"),
    ("drpm cluster digits --device mps --out run", "(mps lacks float64", "got 'mps'"),
    ("drpm cluster digits --device cuda:99 --out run", "device must be available", "got 'cuda:99'"),
    ("drpm cluster digits --set training.epochs=99999999999999999999 --out run", "epochs must be"),
    ("drpm cluster digits --set training.learning_rate=1e38 --out run", "must be at most", "1e38"),
    ("drpm cluster digits --clusters many --out run", "clusters must be a valid", "got 'many'"),
    ("drpm cluster digits --devices 0 --out run", "error: devices must be greater", "got '0'"),
    ("drpm factors --angles 1 --out run", "angles must be at least 2, but got '1'"),
    ("drpm multitask --noise 2 --out run", "noise must be at most 1, but got '2'"),
    ("drpm multitask digits --method uls --set common=true --out run", "common must be unset"),
    ("drpm multitask digits --method uls --set weighting=mgda --out run", "weighting", "'uls'"),
    # Data and folders of a run.
    ("drpm cluster digit --out run", "Unknown data set 'digit'", "did you mean digits"),
    ("drpm cluster nan.csv --out run", "missing or infinite values in b:"),
    ("drpm cluster good.csv -o label_colum=a --out run", "did you mean label_column"),
    ("drpm cluster good.csv --clusters 2 --out file.xyz", "file.xyz: File exists"),
    ("drpm cluster good.csv --clusters 2 --out other-run", "different settings (", "--overwrite"),
    ("drpm cluster good.csv --clusters 2 --out damaged-run", "config.toml is damaged"),
    ("drpm cluster good.csv --clusters 2 --out folder --overwrite", "contains no run", "notes.txt"),
    # Studies and sweeps.
    ("drpm report nothing --out page.html", "No run can be read:", "config.toml is missing"),
    ("drpm report other-run --out labels.csv", "--out must end with .html, but got labels.csv"),
    ("drpm explore --out file.xyz/page.html", "file.xyz: "),
    ("drpm bounds --draws 1 --out file.xyz/a", "file.xyz/a: Not a directory"),
    ("drpm reproduce bonds", "'bonds' is not a sweep", "mean 'bounds'"),
    ("drpm reproduce zzz", "not a sweep; there are", "'bounds'"),
    ("drpm reproduce table-1 --only fashon-mnist", "did you mean 'fashion-mnist'"),
    ("drpm reproduce bounds --address here:1", "address and gpus are for the backend 'ray'"),
    ("drpm reproduce bounds --device gpu", "device must be 'auto', 'cpu'", "but got 'gpu'"),
    ("drpm reproduce bounds --out damaged-sweep", "sweep.json is not a valid sweep file"),
    ("drpm reproduce bounds --out file.xyz/a", "file.xyz/a: Not a directory"),
    # A program of one's own.
    ("digits --out run --set training.epoch=3", "did you mean training.epochs?"),
    ("digits --out run --set training.matmul=tf32", "training.matmul must be", "got 'tf32'"),
    ("digits --out run --set hidden=0", "hidden must be at least 1, but got 0"),
    ("digits --out run --devices 0", "devices must be", "but got '0'"),
    ("digits --evaluate folder", "folder contains no run: config.toml is missing"),
    ("digits --evaluate other-run", "other-run/model contains no model"),
]
FACTORS = [
    ("--shared=8", "shared must be a number from 0 to 7 or 'mixed', but got '8'"),
    ("--method=vae", "method must be"),
    ("--data=nowhere", "nowhere does not exist; use arm, mpi3d, a folder"),
    ("nowhere", "nowhere does not exist; use arm, mpi3d, a folder"),
    ("arm --data=mpi3d", "data must be given once, but got 'arm' and 'mpi3d'."),
    ("--set=training.devices=2", "devices must be 1"),
    ("--data=pairs.npz --shared=5", "shared must be omitted for your own pairs"),
    ("--which=first", "which must be 'fixed' or 'random', but got 'first'"),
    ("--data=pairs.npz --which=fixed", "which must be omitted for your own pairs"),
    ("--data=pairs.npz --angles=10", "angles must be omitted for your own pairs"),
    ("--data=pairs.npz --test-pairs=200", "test_pairs must be omitted for your own pairs"),
    ("--data=pairs.npz --method=label", "method must not be 'label'"),
]
FEW_DIGITS = "drpm multitask --set train_examples=40 --set test_examples=10"
MULTITASK = [
    ("--method=mtl", "method must be"),
    ("--tasks=3", "'multimnist' has no option 'num_tasks'"),
    ("--set=training.devices=2", "devices must be 1"),
    ("--set=network.width=1", "network.width must be at least the number of tasks, 2, for"),
    ("digits", "images must have sides of at least 16 pixels for the encoder 'lenet'"),
    ("-o noise=0.2 --noise=0.3", "noise must be given once, but was given twice"),
    ("mosaic -o num_tasks=3 --tasks=4", "num_tasks must be given once"),
    ("-o size=3", "size"),
    ("-o noise", "An option must have the form name=value, but got 'noise'"),
    ("-o noise=0 -o noise=0.1", "The option noise must be given once"),
    ("-o device=cpu", "device is not an option of the data"),
    ("mosiac --tasks=5", "Unknown data set 'mosiac': did you mean mosaic"),
    ("own.npy --tasks=5", "own.npy has no option 'num_tasks'"),
]
MISUSED = [
    ("drpm bound", "No such command 'bound'"),
    ("drpm cluster", "Missing argument"),
    ("drpm bounds --color red", "No such option", "--color"),
    ("drpm data show digits --seed -1", "'--seed'"),
    ("drpm bounds --draws 0", "'--draws'"),
    ("drpm reproduce bounds --backend slurm", "'--backend'", "slurm"),
    ("drpm reproduce bounds --workers -2", "'--workers'"),
    ("drpm reproduce bounds --gpus many", "'--gpus'"),
    ("digits", "one of the arguments --out --evaluate is required"),
]


def bad_files(folder: Path) -> None:
    tables = {
        "empty": "",
        "header": "a,b\n",
        "numbers": "1,2\n3,4\n5,6\n",
        "words": "a,b\nx,2\ny,3\n",
        "gaps": "a,b\n1,2\n,3\n4,5\n",
        "nan": "a,b\n1,nan\n2,NaN\n3,4\n",
        "ragged": "a,b\n1,2\n3,4,5\n",
        "twice": "a,a\n1,2\n3,4\n",
        "nameless": "a,\n1,2\n3,4\n",
        "labels": "label\n1\n2\n",
        "vast": "a,b\n1e308,2\n-1e308,3\n0,4\n",
        "good": "a,b\n1,2\n2,5\n4,3\n",
    }
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    (folder / "image.csv").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (folder / "wrong.parquet").write_bytes(b"no parquet")
    np.savez(folder / "cut.npz", inputs=np.zeros((4, 2)))
    content = (folder / "cut.npz").read_bytes()
    (folder / "cut.npz").write_bytes(content[: len(content) // 2])
    (folder / "pickle.npy").write_bytes(pickle.dumps([1, 2, 3]))
    np.savez_compressed(folder / "flipped.npz", inputs=np.arange(400.0).reshape(100, 4))
    content = (folder / "flipped.npz").read_bytes()
    flipped = bytes(255 - byte for byte in content[70:90])
    (folder / "flipped.npz").write_bytes(content[:70] + flipped + content[90:])
    with (folder / "huge.npy").open("wb") as file:
        shape = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**9)}
        npy.write_array_header_1_0(file, shape)
    np.save(folder / "dates.npy", np.arange(6).astype("datetime64[D]").reshape(3, 2))
    np.save(folder / "text.npy", np.array(["a", "b"]))
    (folder / "file.xyz").touch()
    (folder / "folder").mkdir()
    (folder / "folder" / "notes.txt").touch()
    (folder / "damaged").mkdir()
    for name in ("bad", "worse"):
        (folder / "damaged" / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "sizes").mkdir()
    for name, width in (("a", 2), ("b", 3)):
        Image.new("L", (width, 2)).save(folder / "sizes" / f"{name}.png")
    (folder / "huge").mkdir()
    for name in ("a", "b"):
        (folder / "huge" / f"{name}.png").write_bytes(png_start(20_000, 20_000))
    (folder / "typo.toml").write_text("cluters = 3\n", encoding="utf-8")
    (folder / "other-run").mkdir()
    (folder / "other-run" / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    (folder / "damaged-run").mkdir()
    (folder / "damaged-run" / "config.toml").write_text("seed = [", encoding="utf-8")
    (folder / "damaged-sweep").mkdir()
    (folder / "damaged-sweep" / "sweep.json").write_text("{")
    write_mnist(folder / "data" / "fashion-mnist")
    labels = folder / "data" / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    labels.unlink()
    labels.mkdir()
    images = np.random.default_rng(0).random((2, 12, 8, 8))
    np.savez(folder / "pairs.npz", first=images[0], second=images[1])
    write_mnist(folder / "data" / "mnist")
    whole = idx_bytes(np.zeros((3, 28, 28), np.uint8))
    damaged = folder / "data" / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(gzip.compress(whole[:-100]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad")
    bad_files(made)
    return made


def answer(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What is on the error stream of a program that ends with this exit code."""
    program, *arguments = words
    if program == "drpm":
        return drpm(*arguments, code=code).stderr
    try:
        found = digits.main(arguments)
    except SystemExit as stop:
        found = int(str(stop.code))
    assert found == code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "command", "expected"),
    [
        *((1, command, expected) for command, *expected in REFUSED),
        *((1, f"drpm factors {given} --out run", expected) for given, *expected in FACTORS),
        *((1, f"{FEW_DIGITS} {given} --out run", expected) for given, *expected in MULTITASK),
        *((2, command, expected) for command, *expected in MISUSED),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    code: int,
    command: str,
    expected: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DRPM_DATA", str(folder / "data"))
    monkeypatch.setattr("pooch.os_cache", lambda name: folder / "cache")
    before = sorted(folder.rglob("*"))
    errors = answer(shlex.split(command), code, capsys)
    if code == 1:
        (line,) = errors.splitlines()
        assert re.fullmatch(r"error: .*[.?]", line), line
    assert "Traceback" not in errors
    for fragment in expected:
        assert fragment in errors
    # Nothing is left behind that would get in the way of the next, better command.
    made = {path.relative_to(folder).parts[0] for path in set(folder.rglob("*")) - set(before)}
    assert not made & {"run", "out", "cache"}


def test_from_a_shell(folder: Path) -> None:
    """Where nothing of this process can help."""
    done = python("-m", "drpm", "data", "show", "ragged.csv", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Expected 2 fields in line 3, saw 3" in done.stderr
    assert done.stderr.count("\n") == 1
