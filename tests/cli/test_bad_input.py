"""Bad input from the command line: one clear sentence, an exit code, no traceback.

A row of the table is a command and what its sentence must say: what was wrong, what was expected
and what came. Commands are given in a folder of bad files, which `bad_files` writes.
"""

import gzip
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.lib import format as npy
from PIL import Image
from typer.testing import CliRunner

from drpm.cli import app
from drpm.training.runs import RunFolder
from examples import digits
from tests.data.formats import idx_bytes, png_start, write_mnist

ROOT = Path(__file__).parents[2]

REFUSED, MISUSED = 1, 2


class Case(NamedTuple):
    """A command that must be refused.

    Arguments:
        command: As typed; its first word is the program, ``drpm`` or ``digits`` (the example).
        expected: What its sentence must contain.
        code: Its exit code.
    """

    command: str
    expected: tuple[str, ...]
    code: int = REFUSED


CASES = {
    # Users' own tables.
    "missing file": Case("drpm data show nothing.csv", ("nothing.csv does not exist",)),
    "empty csv": Case("drpm data show empty.csv", ("empty.csv is empty",)),
    "blank csv": Case("drpm data show blank.csv", ("blank.csv is empty",)),
    "header only": Case(
        "drpm data show header.csv", ("header.csv should have at least two rows", "has no row")
    ),
    "one row": Case(
        "drpm data show one.csv", ("one.csv should have at least two rows", "has one row")
    ),
    "no header": Case(
        "drpm data show numbers.csv",
        ("should name its columns", "holds only numbers", "-o header=false"),
    ),
    "constant column": Case(
        "drpm data show constant.csv", ("the same value in every row of the column a",)
    ),
    "strings": Case(
        "drpm data show words.csv",
        ("numbers only", "other values in the column a ('x')", "-o label_column=NAME"),
    ),
    "missing values": Case("drpm data show gaps.csv", ("missing or infinite", "column a (1)")),
    "NaN": Case("drpm data show nan.csv", ("missing or infinite values in the column b (2)",)),
    "infinity": Case("drpm data show infinite.csv", ("missing or infinite", "column a (1)")),
    "ragged csv": Case(
        "drpm data show ragged.csv", ("ragged.csv", "Expected 2 fields in line 3, saw 3")
    ),
    "repeated column": Case("drpm data show twice.csv", ("more than one column named 'a'",)),
    "nameless column": Case("drpm data show nameless.csv", ("no name for its column 2",)),
    "no such label": Case(
        "drpm data show good.csv -o label_column=kind", ("no column 'kind'", "columns are a, b")
    ),
    "only a label": Case("drpm data show labels.csv", ("no column of inputs",)),
    "not text": Case("drpm data show image.csv", ("not a text file in UTF-8",)),
    "numbers beyond single precision": Case(
        "drpm data show vast.csv", ("vast.csv has numbers too large", "in the column a", "unit")
    ),
    "not parquet": Case("drpm data show wrong.parquet", ("wrong.parquet",)),
    # Users' own arrays.
    "corrupted npz": Case("drpm data show broken.npz", ("broken.npz",)),
    "truncated npz": Case("drpm data show cut.npz", ("cut.npz",)),
    "flipped bytes in an npz": Case("drpm data show flipped.npz", ("flipped.npz cannot be read",)),
    "array larger than the memory": Case(
        "drpm data show huge.npy", ("huge.npy cannot be read", "Unable to allocate")
    ),
    "array of dates": Case(
        "drpm data show dates.npy", ("dates.npy", "other values in column 1 ('1970-01-01")
    ),
    "corrupted npy": Case("drpm data show broken.npy", ("broken.npy",)),
    "pickled npy": Case("drpm data show objects.npy", ("objects.npy",)),
    "a pickle called npy": Case("drpm data show pickle.npy", ("pickle.npy",)),
    "NaN in an array": Case("drpm data show nan.npy", ("nan.npy", "missing or infinite")),
    "array of text": Case("drpm data show text.npy", ("text.npy should hold a table",)),
    "empty array": Case("drpm data show none.npy", ("none.npy",)),
    # Folders of images.
    "wrong kind of file": Case("drpm data show file.xyz", ("file.xyz", "end in .npy, .npz, .csv")),
    "folder without images": Case("drpm data show folder", ("at least two images",)),
    "damaged image": Case("drpm data show damaged", ("bad.png cannot be read as an image",)),
    "huge image": Case("drpm data show huge", ("a.png cannot be read as an image",)),
    "images of several sizes": Case(
        "drpm data show sizes", ("b.png is 3x2 pixels large, but a.png is 2x2", "-o image_size=N")
    ),
    "image size": Case("drpm data show damaged -o image_size=0", ("image_size must be", "not 0")),
    # Data sets by name.
    "unknown data set": Case("drpm data show minst", ("no data set 'minst'", "did you mean mnist")),
    "unknown set to fetch": Case("drpm data fetch digit", ("no data set 'digit'", "digits")),
    "unknown set to check": Case("drpm data check zzz", ("no data set 'zzz'", "there are digits")),
    "truncated idx": Case("drpm data show mnist", ("train-images-idx3-ubyte", "is truncated")),
    "damaged files": Case("drpm data check mnist", ("train-images-idx3-ubyte", "damaged")),
    "unknown part": Case(
        "drpm data show digits --part all", ("part must be 'train' or 'test'", "all")
    ),
    "option without value": Case("drpm data show digits -o noise", ("name=value, not 'noise'",)),
    "unknown option": Case(
        "drpm data show arm -o num_trian=3", ("no option 'num_trian'", "did you mean num_train")
    ),
    "option of another type": Case(
        "drpm data show arm -o num_train=many",
        ("'num_train' should be a valid integer",),
    ),
    "option out of range": Case("drpm data show arm -o num_train=-3", ("num_train", "-3")),
    "unwritable picture": Case(
        "drpm data show digits --out file.xyz/a.png", ("file.xyz/a.png cannot be written",)
    ),
    "picture of another kind": Case(
        "drpm data show digits --out sheet.foo", ("sheet.foo should end in .png",)
    ),
    "folder in the place of a file": Case(
        "drpm data check fashion-mnist",
        ("fashion-mnist/t10k-labels-idx1-ubyte.gz is damaged (is a folder",),
    ),
    "negative seed": Case(
        "drpm data show digits --seed -1",
        ("'--seed': expected a whole number from 0 to", "but got '-1'"),
        MISUSED,
    ),
    "no data set": Case("drpm data fetch", ("Missing argument",), MISUSED),
    # Commands and options.
    "unknown command": Case("drpm bound", ("No such command 'bound'",), MISUSED),
    "unknown command of a group": Case("drpm data burn", ("No such command 'burn'",), MISUSED),
    "unknown flag": Case("drpm bounds --colour red", ("No such option", "--colour"), MISUSED),
    "no draws": Case(
        "drpm bounds --draws 0",
        ("'--draws': expected a whole number of at least 1, but got '0'",),
        MISUSED,
    ),
    "draws in words": Case(
        "drpm bounds --draws ten", ("'--draws': expected a whole number", "got 'ten'"), MISUSED
    ),
    "unwritable folder": Case(
        "drpm bounds --draws 1 --out file.xyz/a", ("--out: ", "file.xyz/a cannot be made"), MISUSED
    ),
    "file in place of a folder": Case(
        "drpm bounds --draws 1 --out file.xyz", ("'--out'", "file.xyz"), MISUSED
    ),
    # Clusterings.
    "more clusters than rows": Case(
        "drpm cluster good.csv --clusters 4 --out run",
        ("clusters must be at most the number of examples, 3, but got 4",),
    ),
    "no clusters": Case(
        "drpm cluster digits --clusters 0 --out run",
        ("'--clusters': expected a whole number of at least 1, but got '0'",),
        MISUSED,
    ),
    "clusters in words": Case(
        "drpm cluster digits --clusters many --out run",
        ("'--clusters': expected a whole number", "got 'many'"),
        MISUSED,
    ),
    "no clusters as a setting": Case(
        "drpm cluster digits --set clusters=0 --out run",
        ("clusters must be", "got '0'"),
    ),
    "unknown preset of a clustering": Case(
        "drpm cluster digits --preset fast-clutser --out run",
        ("'fast-clutser' is not a preset; did you mean 'fast-cluster'",),
    ),
    "unknown method": Case(
        "drpm cluster digits --method vaed --out run",
        ("method must be 'drpm-vc'", "but got 'vaed'; did you mean 'vade'?"),
    ),
    "negative epochs of a clustering": Case(
        "drpm cluster digits --set training.epochs=-1 --out run",
        ("training.epochs must be at least 0, but got '-1'",),
    ),
    "negative epochs of pretraining": Case(
        "drpm cluster digits --set pretraining.training.epochs=-1 --out run",
        ("pretraining.training.epochs must be at least 0, but got '-1'",),
    ),
    "unknown setting of a clustering": Case(
        "drpm cluster digits --set bata=1 --out run",
        ("bata is not a setting; did you mean beta?",),
    ),
    "clustering's setting of another type": Case(
        "drpm cluster digits --set gamma=large --out run", ("gamma must be a", "got 'large'")
    ),
    "no layers": Case(
        "drpm cluster digits --set network.encoder= --out run",
        ("network.encoder must have at least 1 item, but got []",),
    ),
    "negative temperature": Case(
        "drpm cluster digits --set temperature=1,-1 --out run",
        ("temperature[1] must be greater than 0", "-1"),
    ),
    "several devices for another model": Case(
        "drpm supervised digits --set training.devices=2 --out run",
        ("devices must be 1", "but got 2; several devices", "(drpm cluster --devices N)"),
    ),
    "several devices for half a clustering": Case(
        "drpm cluster digits --set training.devices=2 --out run",
        ("pretraining.training.devices must be that of training, 2, but got 1",),
    ),
    "no head to start from": Case(
        "drpm cluster digits --set pretraining.kind=reconstruction "
        "--set mixture.init=contrastive-head --out run",
        (
            "pretraining.kind must be 'contrastive' where mixture.init is",
            "set mixture.init to 'k-means++'",
        ),
    ),
    "views of images for a table": Case(
        "drpm cluster good.csv --clusters 2 --set pretraining.views=mnist --out run",
        ("pretraining.views must be 'noise' for rows of numbers, but got 'mnist'",),
    ),
    "chances that are none": Case(
        "drpm cluster good.csv --clusters 2 --set likelihood=bernoulli --out run",
        ("good.csv must lie in [0, 1] where likelihood is 'bernoulli', but got values from",),
    ),
    "preset of another command to cluster": Case(
        "drpm cluster digits --preset fast-factors --out run",
        ("'fast-factors' is a preset of drpm factors, not of drpm cluster.",),
    ),
    "preset of another command for factors": Case(
        "drpm factors --preset fast-cluster --out run",
        ("'fast-cluster' is a preset of drpm cluster, not of drpm factors.",),
    ),
    "preset of another command for tasks": Case(
        "drpm multitask --preset paper-supervised-mnist --out run",
        ("'paper-supervised-mnist' is a preset of drpm supervised, not of drpm multitask.",),
    ),
    "preset of another command for classes": Case(
        "drpm supervised digits --preset fast-multitask --out run",
        ("'fast-multitask' is a preset of drpm multitask, not of drpm supervised.",),
    ),
    "unknown preset far from any": Case(
        "drpm supervised digits --preset zzz --out run",
        ("'zzz' is not a preset; there are 'fast-supervised', 'paper-supervised-fashion-mnist',",),
    ),
    "unknown data set to cluster": Case(
        "drpm cluster digit --out run", ("no data set 'digit'", "did you mean digits")
    ),
    "missing file to cluster": Case(
        "drpm cluster nothing.csv --out run", ("nothing.csv does not exist",)
    ),
    "strings to cluster": Case(
        "drpm cluster words.csv --out run", ("numbers only", "other values in the column a ('x')")
    ),
    "NaN to cluster": Case(
        "drpm cluster nan.csv --out run", ("missing or infinite values in the column b (2)",)
    ),
    "header only to cluster": Case(
        "drpm cluster header.csv --out run", ("at least two rows", "has no row")
    ),
    "one row to cluster": Case(
        "drpm cluster one.csv --out run", ("at least two rows", "has one row")
    ),
    "constant column to cluster": Case(
        "drpm cluster constant.csv --out run", ("the same value in every row of the column a",)
    ),
    "unknown option of data to cluster": Case(
        "drpm cluster good.csv -o label_colum=a --out run",
        ("no option 'label_colum'", "did you mean label_column"),
    ),
    "unwritable folder of a clustering": Case(
        "drpm cluster good.csv --clusters 2 --out file.xyz/a",
        ("The run folder file.xyz/a cannot be made, because a file is in the place",),
    ),
    "file in place of a clustering": Case(
        "drpm cluster good.csv --clusters 2 --out file.xyz",
        ("file.xyz cannot be made, because a file is in the place of the folder file.xyz.",),
    ),
    "folder of another run": Case(
        "drpm cluster good.csv --clusters 2 --out other-run",
        (
            "The run in other-run has other settings (",
            "or overwrite it (on the command line --overwrite).",
        ),
    ),
    "settings that are damaged": Case(
        "drpm cluster good.csv --clusters 2 --out damaged-run",
        ("damaged-run has other settings (its config.toml is damaged", "--overwrite"),
    ),
    "folder of something else": Case(
        "drpm cluster good.csv --clusters 2 --out folder --overwrite",
        ("folder is not empty and holds no run (it has notes.txt)",),
    ),
    "seeds in words": Case(
        "drpm cluster digits --seeds a --out run", ("seeds must be whole numbers", "but got 'a'")
    ),
    "a seed twice": Case(
        "drpm cluster digits --seeds 0,0 --out run", ("seeds must all differ, but got '0,0'",)
    ),
    "a seed twice, spelt otherwise": Case(
        "drpm cluster digits --seeds 1,01 --out run", ("seeds must all differ, but got '1,01'",)
    ),
    "negative seed of a clustering": Case(
        "drpm cluster digits --seeds -1 --out run", ("seeds must be whole numbers", "got '-1'")
    ),
    "unknown device to cluster on": Case(
        "drpm cluster digits --device gpu --out run",
        ("error: device must be 'auto'", "but got 'gpu'"),
    ),
    "epochs beyond all numbers": Case(
        "drpm cluster digits --set training.epochs=99999999999999999999 --out run",
        ("epochs must be at most 1000000000, but got '99999999999999999999'",),
    ),
    "a learning rate beyond all numbers": Case(
        "drpm cluster digits --set training.learning_rate=1e38 --out run",
        ("learning_rate must be at most", "but got '1e38'"),
    ),
    "card that is not there": Case(
        "drpm cluster digits --device cuda:99 --out run", ("device must be one", "got 'cuda:99'")
    ),
    "nothing to cluster": Case("drpm cluster", ("Missing argument",), MISUSED),
    # Sweeps.
    "unknown sweep": Case("drpm reproduce bonds", ("'bonds' is not a sweep", "mean 'bounds'")),
    "unknown sweep, none near": Case("drpm reproduce zzz", ("not a sweep; there are", "'bounds'")),
    "unknown study": Case(
        "drpm reproduce table-1 --only fashon-mnist",
        ("only must be a run of the sweep 'table-1'", "did you mean 'fashion-mnist'"),
    ),
    "nothing to collect": Case(
        "drpm reproduce table-1 --out nowhere --collect kept",
        ("nowhere holds no finished run of 'table-1'",),
    ),
    "no sweep": Case("drpm reproduce", ("Missing argument 'NAME'",), MISUSED),
    "unknown backend": Case(
        "drpm reproduce bounds --backend slurm",
        ("Invalid value for '--backend'", "'slurm' is not one of 'local', 'ray'"),
        MISUSED,
    ),
    "negative workers": Case(
        "drpm reproduce bounds --workers -2", ("'--workers': expected", "got '-2'"), MISUSED
    ),
    "workers in words": Case(
        "drpm reproduce bounds --workers all", ("'--workers': expected", "got 'all'"), MISUSED
    ),
    "share of a card that cannot be": Case(
        "drpm reproduce bounds --gpus nan",
        ("'--gpus': expected a number of at least 0, but got 'nan'",),
        MISUSED,
    ),
    "address without a cluster": Case(
        "drpm reproduce bounds --address here:1", ("address and gpus are for the backend 'ray'",)
    ),
    "unknown device for a sweep": Case(
        "drpm reproduce bounds --device gpu", ("device must be 'auto', 'cpu'", "but got 'gpu'")
    ),
    "device of a sweep without": Case(
        "drpm reproduce bounds --device cpu", ("device must be left out", "'bounds'", "got 'cpu'")
    ),
    "folder of another sweep": Case(
        "drpm reproduce bounds --out other-sweep", ("holds the sweep 'table-1'", "'bounds'")
    ),
    "folder that cannot be made": Case(
        "drpm reproduce bounds --out file.xyz/a", ("file.xyz/a cannot be written",)
    ),
    # Benchmarks.
    "sizes in words": Case(
        "drpm bench --sizes 8,many", ("--sizes: expected positive whole", "got '8,many'"), MISUSED
    ),
    "unknown operation": Case(
        "drpm bench --operations sing", ("--operations: invalid choice: 'sing'",), MISUSED
    ),
    "unknown device to measure": Case(
        "drpm bench --device abacus", ("torch has no device 'abacus'",), MISUSED
    ),
    "no place for results": Case(
        "drpm bench --out file.xyz/a",
        ("--out: the folder 'file.xyz/a' cannot be created",),
        MISUSED,
    ),
    # A training run.
    "negative epochs": Case(
        "digits --out run --set training.epochs=-1",
        ("training.epochs must be at least 0, but got '-1'",),
    ),
    "no batch": Case(
        "digits --out run --set training.batch_size=0",
        ("batch_size must be", "got '0'"),
    ),
    "unknown setting": Case(
        "digits --out run --set training.epoch=3",
        ("training.epoch is not a setting; did you mean training.epochs?",),
    ),
    "setting of another type": Case(
        "digits --out run --set training.epochs=three",
        ("training.epochs must be a valid integer, but got 'three'",),
    ),
    "unknown choice": Case(
        "digits --out run --set training.optimizer=adm",
        ("training.optimizer must be", "got 'adm'; did you mean 'adam'?"),
    ),
    "unknown precision of products": Case(
        "digits --out run --set training.matmul=tf32",
        ("training.matmul must be 'highest' or 'high', but got 'tf32'",),
    ),
    "not a setting at all": Case(
        "digits --out run --set epochs", ("name=value, but got 'epochs'",)
    ),
    "a width that cannot be": Case(
        "digits --out run --set hidden=0", ("hidden must be at least 1, but got 0",)
    ),
    "unknown preset": Case(
        "digits --out run --preset quik", ("'quik' is not a preset; did you mean 'quick'?",)
    ),
    "unknown device": Case(
        "digits --out run --set training.device=gpu", ("device must be 'auto'", "but got 'gpu'")
    ),
    "device that is not there": Case(
        "digits --out run --set training.device=cuda:99", ("device must be one", "got 'cuda:99'")
    ),
    "graph without a card": Case(
        "digits --out run --set training.device=cpu --set training.step=graph",
        ("step must be 'eager' or 'auto'", "but got 'graph' on 1 x cpu"),
    ),
    "no devices": Case("digits --out run --devices 0", ("devices must be", "but got '0'")),
    "resume what is no run": Case(
        "digits --out folder", ("folder is not empty and holds no run (it has notes.txt)",)
    ),
    "resume another run": Case(
        "digits --out other-run", ("The run in other-run has other settings",)
    ),
    "a file in place of a run": Case("digits --out file.xyz", ("folder file.xyz cannot be made",)),
    "load what is no run": Case(
        "digits --evaluate folder", ("folder holds no run: config.toml is missing",)
    ),
    "load an unfinished run": Case(
        "digits --evaluate other-run", ("other-run/model holds no model",)
    ),
    "nothing to do": Case(
        "digits", ("one of the arguments --out --evaluate is required",), MISUSED
    ),
}


def bad_files(folder: Path) -> None:
    tables = {
        "empty": "",
        "blank": "\n\n",
        "header": "a,b\n",
        "one": "a,b\n1,2\n",
        "numbers": "1,2\n3,4\n5,6\n",
        "constant": "a,b\n1,2\n1,3\n",
        "words": "a,b\nx,2\ny,3\n",
        "gaps": "a,b\n1,2\n,3\n4,5\n",
        "nan": "a,b\n1,nan\n2,NaN\n3,4\n",
        "infinite": "a,b\n1,2\ninf,3\n4,5\n",
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
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    (folder / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (folder / "pickle.npy").write_bytes(pickle.dumps([1, 2, 3]))
    np.save(folder / "objects.npy", np.array([{}, None]), allow_pickle=True)
    np.save(folder / "nan.npy", np.array([[1.0, 2.0], [np.nan, 3.0], [2.0, 1.0]]))
    np.savez_compressed(folder / "flipped.npz", inputs=np.arange(400.0).reshape(100, 4))
    content = (folder / "flipped.npz").read_bytes()
    flipped = bytes(255 - byte for byte in content[70:90])
    (folder / "flipped.npz").write_bytes(content[:70] + flipped + content[90:])
    with (folder / "huge.npy").open("wb") as file:
        shape = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**9)}
        npy.write_array_header_1_0(file, shape)
    np.save(folder / "dates.npy", np.arange(6).astype("datetime64[D]").reshape(3, 2))
    np.save(folder / "text.npy", np.array(["a", "b"]))
    np.save(folder / "none.npy", np.zeros((0, 3)))
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
    (folder / "other-run").mkdir()
    (folder / "other-run" / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    (folder / "damaged-run").mkdir()
    (folder / "damaged-run" / "config.toml").write_text("seed = [", encoding="utf-8")
    (folder / "other-sweep").mkdir()
    (folder / "other-sweep" / "sweep.json").write_text('{"name": "table-1", "runs": []}')
    (folder / "data" / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").mkdir(parents=True)
    write_mnist(folder / "data" / "mnist")
    whole = idx_bytes(np.zeros((3, 28, 28), np.uint8))
    (folder / "data" / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(whole[:-100])
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad")
    bad_files(made)
    return made


class Answer(NamedTuple):
    code: int
    errors: str


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    program, *arguments = words
    if program == "drpm":
        # Wide enough that no message is wrapped in the middle of what a test looks for.
        environment = {"COLUMNS": "300", "NO_COLOR": "1"}
        result = CliRunner().invoke(app, arguments, env=environment)
        # Anything else than an exit is what a shell would show as a traceback.
        assert isinstance(result.exception, SystemExit), repr(result.exception)
        return Answer(result.exit_code, result.stderr)
    try:
        code = digits.main(arguments)
    except SystemExit as stop:
        code = int(str(stop.code))
    return Answer(code, capsys.readouterr().err)


def plain(text: str) -> str:
    """The text without colours, boxes and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_sentence(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DRPM_DATA", str(folder / "data"))
    monkeypatch.setattr("drpm.data.files.cache_folder", lambda: folder / "cache")
    before = sorted(folder.rglob("*"))
    case = CASES[name]
    code, errors = answer(shlex.split(case.command), capsys)
    assert code == case.code, errors
    if case.code == REFUSED:
        (line,) = errors.splitlines()
        assert re.fullmatch(r"error: .*[.?]", line), line
    assert "Traceback" not in errors
    for fragment in case.expected:
        assert fragment in plain(errors)
    # Nothing is left behind that would get in the way of the next, better command.
    made = {path.relative_to(folder).parts[0] for path in set(folder.rglob("*")) - set(before)}
    assert not made & {"run", "out", "cache"}


def test_a_batch_larger_than_the_data_is_all_of_the_data(tmp_path: Path) -> None:
    settings = ["--set=training.batch_size=100000", "--set=training.epochs=1"]
    assert digits.main(["--out", str(tmp_path / "run"), *settings]) == 0
    assert len(RunFolder.open(tmp_path / "run").metrics()) == 1


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 20


# The same from a shell, where nothing of this process can help.
@pytest.mark.parametrize("name", ["ragged csv", "unknown sweep", "unknown setting"])
def test_from_a_shell(name: str, folder: Path) -> None:
    case = CASES[name]
    program, *arguments = shlex.split(case.command)
    programs = {"drpm": ["-m", "drpm"], "digits": [str(ROOT / "examples" / "digits.py")]}
    done = subprocess.run(
        [sys.executable, *programs[program], *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == case.code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert all(fragment in line for fragment in case.expected)
