"""Users' own files: what becomes of them. More bad ones are in tests/cli/test_bad_input.py."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from drpm.data import DataError, load
from drpm.data.types import column_scales


def csv(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_a_table_is_standardized(tmp_path: Path) -> None:
    path = csv(tmp_path, "height,weight,label\n1,10,cat\n2,30,dog\n3,20,cat\n")
    dataset = load(path, label_column=None)
    assert dataset.test is dataset.train
    assert dataset.columns == ("height", "weight")
    inputs = dataset.train.inputs
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.pow(4).mean(0), torch.full((2,), 3.0))  # as if normal
    restored = inputs * dataset.preprocessing["std"] + dataset.preprocessing["mean"]
    torch.testing.assert_close(restored.float(), torch.tensor([[1.0, 10], [2, 30], [3, 20]]))
    assert dataset.train.targets["label"].tolist() == [0, 1, 0]
    assert dataset.classes == {"label": ("cat", "dog")}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_quotes_blank_lines_and_marks(tmp_path: Path, separator: str) -> None:
    lines = ['"a x"', "b"], ['"1.5"', "2e1"], ["-2", "3"], ["", ""]
    text = "\ufeff" + "\r\n".join(separator.join(line) for line in lines) + "\r\n\r\n"
    path = tmp_path / "table.CSV"
    path.write_bytes(text.encode())
    dataset = load(path)
    assert dataset.columns == ("a x", "b")
    expected = torch.tensor([-0.25, 11.5], dtype=torch.float64)
    torch.testing.assert_close(dataset.preprocessing["mean"], expected)


def test_numbers_are_the_nearest_doubles(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=200) * 1e-5
    rows = "".join(f"{value!r}\n" for value in values.tolist())
    mean = load(csv(tmp_path, f"a\n{rows}")).preprocessing["mean"]
    assert mean.item() == values[:, None].mean(0).item()


def test_labels(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,label\n1,10\n2,9\n4,10\n")
    numbered = load(path)
    assert numbered.classes["label"] == ("9", "10")  # as numbers, not as texts
    assert numbered.train.targets["label"].tolist() == [1, 0, 1]
    other = load(path, label_column="a")
    assert other.columns == ("label",)
    assert other.classes["a"] == ("1", "2", "4")
    with pytest.raises(DataError, match="does not support the option image_size"):
        load(path, image_size=3)
    measured = load(csv(tmp_path, "a,label\n1,0.5\n2,0.25\n"))
    assert measured.train.targets["label"].tolist() == [0.5, 0.25]
    assert measured.classes == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n0.1,1\n0.1,2\n0.1,3\n", "the same value in every row in a:"),
        ("a,b\n1e-200,1\n2e-200,2\n", "the same value in every row in a:"),
        ("a,label\n1,x\n2,\n3,y\n", "1 missing or infinite labels in the column 'label'"),
        ("a,label\n1,1\n2,inf\n3,2\n", "1 missing or infinite labels in the column 'label'"),
        ('a,b\n"1,2\n3,4\n', "cannot be read as CSV"),
        (f"a,b\n{'long ' * 99},2\n1,3\n", r"other values in a \('long long .{,20}\.\.\.'\)"),
        ("c,d,e,f,g,h,i\nx,x,x,x,x,x,x\n1,1,1,1,1,1,1\n", r"c \('x'\), .*g \('x'\) and 2 more"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=rf"table\.csv .*{complaint}"):
        load(csv(tmp_path, text))


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1 but no more")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "pyarrow", None)
        context.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(DataError, match=r"table\.parquet needs the package pyarrow"):
            load(path)
    pytest.importorskip("pyarrow", reason="an optional package")
    pd.DataFrame({"a": [1, 2, 3], "label": ["x", "y", "x"]}).to_parquet(path)
    dataset = load(path)
    assert dataset.train.inputs.shape == (3, 1)
    assert dataset.classes == {"label": ("x", "y")}
    dates = np.array(["2020-01-01", "2020-01-02", "NaT"], "datetime64[s]")
    for column, complaint in (
        ([1, None, 3], r"missing or infinite values in a:"),
        (["u", None, "v"], r"other values in a \('u'\)"),
        (dates, r"other values in a \('2020-01-01"),
    ):
        pd.DataFrame({"a": column, "b": [1, 2, 4]}).to_parquet(path)
        with pytest.raises(DataError, match=complaint):
            load(path)
        with pytest.raises(DataError, match="1 missing or infinite labels in the column 'a'"):
            load(path, label_column="a")


@pytest.mark.parametrize("shape", [(5, 6, 7), (5, 6, 7, 1), (5, 6, 7, 3), (5, 3, 6, 7)])
def test_arrays_of_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.save(tmp_path / "images.npy", array)
    dataset = load(tmp_path / "images.npy")
    assert dataset.input_shape == (3 if 3 in shape else 1, 6, 7)
    assert len(dataset.train) == 5
    assert float(dataset.train.inputs.sum() * 255) == pytest.approx(float(array.sum()), rel=1e-5)
    np.save(tmp_path / "floats.npy", array / 255)
    torch.testing.assert_close(load(tmp_path / "floats.npy").train.inputs, dataset.train.inputs)


def test_arrays_with_labels(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(5, 2, (6, 3))
    labels = np.array([1, 1, 0, 2, 2, 0])
    path = tmp_path / "data.npz"
    np.savez(path, table)
    assert load(path).train.targets == {}
    for names in (("x", "y"), ("inputs", "labels"), ("anything", "label")):
        np.savez(path, **{names[0]: table, names[1]: labels})
        dataset = load(path)
        assert dataset.train.targets["label"].tolist() == labels.tolist()
        torch.testing.assert_close(dataset.train.inputs.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    np.savez(path, x_train=table[:4], y_train=labels[:4], x_test=table[4:], y_test=labels[4:])
    parted = load(path)
    assert (len(parted.train), len(parted.test)) == (4, 2)
    assert parted.test.targets["label"].tolist() == [2, 0]
    mean, std = table[:4].mean(0), column_scales(torch.from_numpy(table[:4])).numpy()
    expected = torch.tensor((table[4:] - mean) / std, dtype=torch.float32)
    torch.testing.assert_close(parted.test.inputs, expected)
    parts = {"x_train": table, "y_train": labels, "x_test": table, "y_test": labels}
    for wrong, complaint in (
        ({**parts, "y_train": labels[1:]}, "one label for each"),
        ({**parts, "x_test": table * np.nan}, "missing or infinite values in column 1"),
        ({"a": table, "b": table}, "should contain one array, or one named .* contains a, b"),
    ):
        np.savez(path, **wrong)
        with pytest.raises(DataError, match=rf"data\.npz .*{complaint}"):
            load(path)
    pictures = np.zeros((6, 4, 4), np.uint8)
    np.savez(path, **{**parts, "x_train": pictures, "x_test": pictures})
    assert load(path).input_shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.float64(3), r"has shape \(\)"),
        (np.zeros((4, 2, 2, 2), np.uint8), r"has shape \(4, 2, 2, 2\)"),
        (np.zeros((0, 4, 4), np.uint8), "has shape"),
        (np.zeros((1, 4, 4), np.uint8), "at least two examples"),
        (np.zeros((4, 4, 4), np.int64), "bytes or of numbers from 0 to 1, but contains int64"),
        (np.full((4, 4, 4), 7.0), "float64 from 7.0 to 7.0"),
        (np.full((4, 4, 4), np.nan), "from nan to nan"),
        (np.arange(8.0).reshape(4, 2).astype(complex), "other values in column 1"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, array: np.ndarray, complaint: str) -> None:
    np.save(tmp_path / "array.npy", array)
    with pytest.raises(DataError, match=rf"array\.npy .*{complaint}"):
        load(tmp_path / "array.npy")


def picture(path: Path, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 128 if mode == "L" else (255, 0, 0, 255)[: len(mode)]).save(path)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp"])
def test_a_folder_of_images(tmp_path: Path, suffix: str) -> None:
    picture(tmp_path / f"b.{suffix}")
    picture(tmp_path / "a.JPG", mode="L")
    (tmp_path / "notes.txt").touch()
    dataset = load(tmp_path)
    assert dataset.input_shape == (3, 6, 8)
    assert dataset.train.targets == {}
    first, second = dataset.train.inputs.mean((2, 3))
    torch.testing.assert_close(first, torch.full((3,), 128 / 255))
    torch.testing.assert_close(second, torch.tensor([1.0, 0.0, 0.0]), atol=0.01, rtol=0)


def test_gray_images_of_16_bits_keep_their_depth(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768], [40000, 65534, 65535]], np.uint16)
    for name in ("a.png", "b.png"):
        Image.fromarray(values).save(tmp_path / name)
    inputs = load(tmp_path).train.inputs
    assert inputs.shape == (2, 1, 2, 3)
    torch.testing.assert_close(inputs[0, 0], torch.from_numpy(values / 65535).float())
    resized = load(tmp_path, image_size=4).train.inputs
    assert 0 <= float(resized.min()) < 0.1 < 0.9 < float(resized.max()) <= 1
    Image.new("RGB", (3, 2), (255, 0, 51)).save(tmp_path / "c.png")
    mixed = load(tmp_path).train.inputs
    torch.testing.assert_close(mixed[0], inputs[0].expand(3, -1, -1))
    assert mixed[2, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    for deeper in (np.array([[0.5, 2.0]], np.float32), np.array([[-5, 70_000]], np.int32)):
        Image.fromarray(deeper).save(tmp_path / "c.png", format="TIFF")
        with pytest.raises(DataError, match=r"c\.png .* should have 8 or 16 bits per pixel"):
            load(tmp_path)


def test_subfolders_are_classes(tmp_path: Path) -> None:
    for name in ("dogs/1.png", "cats/2.png", "cats/3.png"):
        picture(tmp_path / name)
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "dogs" / "1.png", size=(9, 6))
    dataset = load(tmp_path, image_size=[4, 5])
    assert dataset.input_shape == (3, 4, 5)
    assert dataset.classes == {"label": ("cats", "dogs")}
    assert dataset.train.targets["label"].tolist() == [0, 0, 1]
