"""Users' own files: what becomes of them, and how what is wrong is refused."""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from PIL import Image

from drpm.data import DataError, load
from tests.data.formats import png_start


def csv(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


GOOD = "height,weight,label\n1,10,cat\n2,30,dog\n3,20,cat\n"


def test_a_table_is_standardised(tmp_path: Path) -> None:
    dataset = load(csv(tmp_path, GOOD), label_column=None)
    assert dataset.test is dataset.train
    assert dataset.columns == ("height", "weight")
    inputs = dataset.train.inputs
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(2))
    # What was done can be undone, and done to new rows.
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


def test_labels(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,label,kind\n1,7,x\n2,3,y\n4,7,x\n")
    with pytest.raises(DataError, match=r"text in the column kind \('x'\)"):
        load(path)
    path = csv(tmp_path, "a,label\n1,10\n2,9\n4,10\n")
    numbered = load(path)
    assert numbered.classes["label"] == ("9", "10")  # as numbers, not as texts
    assert numbered.train.targets["label"].tolist() == [1, 0, 1]
    other = load(path, label_column="a")
    assert other.columns == ("label",)
    assert other.classes["a"] == ("1", "2", "4")
    measured = load(csv(tmp_path, "a,label\n1,0.5\n2,0.25\n"))
    assert measured.train.targets["label"].tolist() == [0.5, 0.25]
    assert measured.classes == {}


def test_a_csv_without_a_header(tmp_path: Path) -> None:
    path = csv(tmp_path, "1,2\n3,5\n")
    with pytest.raises(DataError, match=r"name its columns in the first line, .* only numbers"):
        load(path)
    dataset = load(path, header=False)
    assert dataset.columns == ("column 1", "column 2")
    assert len(dataset.train) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"table\.csv is empty"),
        ("\n \n", r"table\.csv is empty"),
        ("a,b\n", "at least two rows, but has no row"),
        ("a,b\n1,2\n", "at least two rows, but has one row"),
        ("a,b\n1,2\n1,3\n", "the same value in every row of the column a: leave it out"),
        ("a,b\n1,2\n1,2\n", "the same value in every row of the columns a, b: leave them out"),
        ("a,b\n0.1,1\n0.1,2\n0.1,3\n", "the column a: leave it out"),
        ("a,b\nred,2\nblue,3\n", r"text in the column a \('red'\)"),
        ("a,b,c\nx,2,1\ny,3,z\n", r"text in the columns a \('x'\), c \('z'\)"),
        ("a,b\n,2\n1,3\n2,4\n", r"missing or infinite values in the column a \(1\)"),
        ("a,b\nNaN,2\nNA,3\n2,inf\n", r"in the columns a \(2\), b \(1\)"),
        ("a,b\n1,2\n3\n", "line 3: there should be 2 values, one for each column, but there are 1"),
        ("a,b\n1,2\n3,4,5\n", "line 3: there should be 2 values"),
        ("a,a\n1,2\n3,4\n", "more than one column named 'a'"),
        ("a,\n1,2\n3,4\n", "no name for its column 2"),
        ("label\n1\n2\n", "has no column of inputs"),
        ("a,label\n1,x\n2,\n3,y\n", "1 missing labels in the column 'label'"),
        ("a,label\n1,1\n2,\n3,2\n", "1 missing labels in the column 'label'"),
        ('a,b\n"1,2\n3,4\n', "is not a csv file"),
        ("a,b\n1e308,1\n-1e308,2\n0,3\n", "numbers too large for single precision in the column a"),
        ("a,b\n1e-200,1\n2e-200,2\n", "differences too small for single precision in the column a"),
        (
            "a,label\n1,1e-60\n2,2e-60\n",
            "labels in the column 'label' whose differences are too sm",
        ),
        (f"a,b\n{'long ' * 99},2\n1,3\n", r"text in the column a \('long long .{,20}\.\.\.'\)"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as refusal:
        load(csv(tmp_path, text))
    assert "table.csv" in str(refusal.value)
    assert str(refusal.value).count(". ") == 0  # one sentence


def test_many_bad_columns_are_cut_short(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(9)]
    text = ",".join(names) + "\n" + ",".join(["x"] * 9) + "\n" + ",".join(["1"] * 9) + "\n"
    with pytest.raises(DataError, match=r"c0 \('x'\), .*c4 \('x'\) and 4 more"):
        load(csv(tmp_path, text))


def test_other_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match=r"binary\.csv is not a text file in UTF-8"):
        load(binary)
    text = tmp_path / "notes.txt"
    text.touch()
    with pytest.raises(DataError, match=r"notes\.txt should be a folder of images or end in"):
        load(text)
    with pytest.raises(DataError, match=r"nothing\.csv does not exist"):
        load(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"has no column 'sort' .*: its columns are height, weight"):
        load(csv(tmp_path, GOOD), label_column="sort")
    with pytest.raises(DataError, match="has no use for the option image_size"):
        load(csv(tmp_path, GOOD), image_size=3)
    with pytest.raises(DataError, match="has no option 'label': did you mean label_column"):
        load(csv(tmp_path, GOOD), label="height")


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1 but no more")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "pyarrow", None)
        context.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(DataError, match=r"table\.parquet needs the package pyarrow"):
            load(path)
    pyarrow = pytest.importorskip("pyarrow", reason="an optional package")
    from pyarrow import parquet

    with pytest.raises(DataError, match=r"table\.parquet is not a whole parquet file"):
        load(path)
    parquet.write_table(pyarrow.table({"a": [1, 2, 3], "label": ["x", "y", "x"]}), path)
    dataset = load(path)
    assert dataset.train.inputs.shape == (3, 1)
    assert dataset.classes == {"label": ("x", "y")}
    parquet.write_table(pyarrow.table({"a": [1, None, 3], "b": [1, 2, 4]}), path)
    with pytest.raises(DataError, match=r"missing or infinite values in the column a \(1\)"):
        load(path)
    parquet.write_table(pyarrow.table({"a": ["u", None, "v"], "b": [1, 2, 4]}), path)
    with pytest.raises(DataError, match=r"text in the column a \('u'\)"):
        load(path)
    dates = np.array(["2020-01-01", "2020-01-02", "NaT"], "datetime64[s]")
    parquet.write_table(pyarrow.table({"a": dates, "b": [1, 2, 4]}), path)
    with pytest.raises(DataError, match="plain numbers only, but has dates in the column a: leave"):
        load(path)
    with pytest.raises(DataError, match="1 missing labels in the column 'a'"):
        load(path, label_column="a")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 6, 7), (1, 6, 7)),
        ((5, 6, 7, 1), (1, 6, 7)),
        ((5, 6, 7, 3), (3, 6, 7)),
        ((5, 3, 6, 7), (3, 6, 7)),
    ],
)
def test_arrays_of_images(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.save(tmp_path / "images.npy", array)
    dataset = load(tmp_path / "images.npy")
    assert dataset.input_shape == expected
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
    mean, std = table[:4].mean(0), table[:4].std(0)
    expected = torch.tensor((table[4:] - mean) / std, dtype=torch.float32)
    torch.testing.assert_close(parted.test.inputs, expected)
    pictures = np.zeros((6, 4, 4), np.uint8)
    np.savez(path, x_train=pictures, y_train=labels, x_test=pictures, y_test=labels)
    assert load(path).input_shape == (1, 4, 4)


NORMAL = np.array([[0.1, -0.6, 1.2], [-0.7, 0.4, 1.1], [0.9, -1.3, -0.2], [-0.4, 0.8, 0.3]])


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.arange(4.0), r"but has the shape \(4, 1\)|a table \(rows, columns\) or images"),
        (np.float64(3), "holds a single number"),
        (np.zeros((4, 2, 2, 2), np.uint8), r"has the shape \(4, 2, 2, 2\)"),
        (np.zeros((0, 4, 4), np.uint8), "has the shape"),
        (np.zeros((1, 4, 4), np.uint8), "at least two images, but holds one"),
        (np.zeros((4, 4, 4), np.int64), "bytes or of numbers from 0 to 1, but holds int64"),
        (np.full((4, 4, 4), 7.0), "its numbers go from 7 to 7"),
        (np.full((4, 4, 4), np.nan), "missing or infinite values in its images"),
        (np.where(NORMAL > 1, np.nan, NORMAL), "missing or infinite values in column"),
        (np.full((4, 3), 2), "the same value in every row of column 1, column 2"),
        (NORMAL[:1], "at least two rows, but has one row"),
        (NORMAL[:, :0], "has no column of inputs"),
        (
            NORMAL.astype(complex),
            "plain numbers only, but has complex numbers in column 1, column 2",
        ),
        (
            np.arange(8).astype("datetime64[D]").reshape(4, 2),
            "dates in column 1, column 2: leave them out",
        ),
        (NORMAL * [1, 1e308, 1], "numbers too large for single precision in column 2"),
        (NORMAL * [1e-300, 1, 1], "differences too small .* in column 1"),
        (np.longdouble(NORMAL) * np.longdouble("1e400"), "missing or infinite values in column 1"),
        (np.full((4, 4, 4), 1e308), r"its numbers go from 1e\+308 to 1e\+308"),
        (np.array([["a", "b"], ["c", "d"]]), r"text in column 1 \('a'\)"),
        (np.array([{}, {}]), "Python objects, which are never loaded"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, array: np.ndarray, complaint: str) -> None:
    path = tmp_path / "array.npy"
    np.save(path, array)
    with pytest.raises(DataError, match=complaint) as refusal:
        load(path)
    assert "array.npy" in str(refusal.value)


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, NORMAL)
    content = path.read_bytes()
    for damaged in (content[:-8], content[:20], b"", b"something else"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"array\.npy is not a whole array of numbers"):
            load(path)
    path = tmp_path / "arrays.npz"
    np.savez(path, a=NORMAL, b=NORMAL)
    with pytest.raises(DataError, match=r"should hold one array, or one named .* holds a, b"):
        load(path)
    np.savez(path, x=NORMAL, y=np.arange(3))
    with pytest.raises(DataError, match=r"one label for each of its 4 inputs, .* shape \(3,\)"):
        load(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"arrays\.npz is not a whole array"):
        load(path)
    path.write_bytes(content)
    with pytest.raises(DataError, match="should be an npz file, but is an npy file"):
        load(path)


def damaged(content: bytes, start: int) -> bytes:
    """The content with a few bytes from there on turned round."""
    return (
        content[:start]
        + bytes(255 - byte for byte in content[start : start + 8])
        + content[start + 8 :]
    )


def test_flipped_bytes_in_a_compressed_array_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, x=np.arange(400.0).reshape(100, 4))
    whole = path.read_bytes()
    for start in range(60, 100, 8):
        path.write_bytes(damaged(whole, start))
        with pytest.raises(DataError, match=r"bad\.npz is not a whole array of numbers"):
            load(path)


def header_only(shape: tuple[int, ...]) -> bytes:
    content = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(content, header)
    return content.getvalue()


def test_an_array_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.npy").write_bytes(header_only((10**6, 10**9)))
    with pytest.raises(DataError, match=r"huge\.npy announces an array too large .* 7\.\d* PiB"):
        load(tmp_path / "huge.npy")
    (tmp_path / "odd.npy").write_bytes(header_only((2, 2)).replace(b"'descr'", b"'"))
    with pytest.raises(DataError, match=r"odd\.npy is not a whole array"):
        load(tmp_path / "odd.npy")


def test_archives_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "locked.npz"
    np.savez(path, x=NORMAL)
    content = bytearray(path.read_bytes())
    # The flag of an encrypted member, in front of it and in the list at the end.
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"locked\.npz is not a whole array .*encrypted"):
        load(path)
    np.savez(path, x=NORMAL)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "not an array")
    assert load(path).input_shape == (3,)


def test_parts_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "parts.npz"
    labels = np.arange(4) % 2
    # Moments of a second apart, as computers count them: single precision knows minutes only.
    times = 1.7e9 + np.arange(8.0).reshape(8, 1)
    np.savez(path, x_train=times[:4], y_train=labels, x_test=times[4:], y_test=labels)
    dataset = load(path)
    steps = torch.cat([dataset.train.inputs, dataset.test.inputs]).diff(dim=0)
    torch.testing.assert_close(steps, torch.full((7, 1), 1 / float(np.std([0, 1, 2, 3]))))
    np.savez(path, x_train=times[:4], y_train=labels, x_test=times[4:] * 1e290, y_test=labels)
    with pytest.raises(DataError, match=r"parts\.npz should hold numbers of one size in x_train"):
        load(path)


def picture(path: Path, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 128 if mode == "L" else (255, 0, 0, 255)[: len(mode)]).save(path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    picture(tmp_path / "b.png")
    picture(tmp_path / "a.JPG")
    (tmp_path / "notes.txt").touch()
    dataset = load(tmp_path)
    assert dataset.input_shape == (3, 6, 8)
    assert dataset.train.targets == {}
    torch.testing.assert_close(
        dataset.train.inputs[1].mean((1, 2)), torch.tensor([1.0, 0.0, 0.0]), atol=0, rtol=0
    )


@pytest.mark.parametrize("suffix", ["bmp", "tif", "tiff", "webp"])
def test_other_formats_of_images(tmp_path: Path, suffix: str) -> None:
    for name, grey in (("a", 40), ("b", 120)):
        values = np.full((6, 8), grey, np.uint8)
        Image.fromarray(values).save(tmp_path / f"{name}.{suffix}", lossless=True)
    inputs = load(tmp_path).train.inputs
    assert inputs.shape[2:] == (6, 8)
    torch.testing.assert_close(inputs.mean((1, 2, 3)), torch.tensor([40.0, 120.0]) / 255)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", mode="L")
    picture(tmp_path / "b.png", mode="L")
    assert load(tmp_path).input_shape == (1, 6, 8)
    picture(tmp_path / "c.png", mode="RGBA")
    mixed = load(tmp_path)
    assert mixed.input_shape == (3, 6, 8)
    assert mixed.train.inputs[0].unique().tolist() == pytest.approx([128 / 255])


def test_grey_images_of_16_bits_keep_their_depth(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768], [40000, 65534, 65535]], np.uint16)
    for name in ("a.png", "b.png"):
        Image.fromarray(values).save(tmp_path / name)
    inputs = load(tmp_path).train.inputs
    assert inputs.shape == (2, 1, 2, 3)
    torch.testing.assert_close(inputs[0, 0], torch.from_numpy(values / 65535).float())
    resized = load(tmp_path, image_size=4).train.inputs
    assert 0 <= float(resized.min()) < 0.1 < 0.9 < float(resized.max()) <= 1
    # Beside others they are as bright as they look.
    Image.new("L", (3, 2), 128).save(tmp_path / "c.png")
    Image.new("RGB", (3, 2), (255, 0, 51)).save(tmp_path / "d.png")
    mixed = load(tmp_path).train.inputs
    assert mixed.shape == (4, 3, 2, 3)
    torch.testing.assert_close(mixed[0], inputs[0].expand(3, -1, -1))
    assert mixed[2].unique().tolist() == pytest.approx([128 / 255])
    assert mixed[3, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])


def test_deeper_images_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    fractions = Image.fromarray(np.array([[0.5, 2.0]], np.float32))
    fractions.save(tmp_path / "b.png", format="TIFF")
    with pytest.raises(
        DataError, match=r"b\.png should have 8 or 16 bits a pixel, but holds fract"
    ):
        load(tmp_path)
    wide = Image.fromarray(np.array([[-5, 70_000]], np.int32))
    wide.save(tmp_path / "b.png", format="TIFF")
    with pytest.raises(DataError, match=r"b\.png should have .* numbers from -5 to 70000"):
        load(tmp_path)


def test_huge_images_are_refused(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png_start(20_000, 20_000))
    with pytest.raises(DataError, match=r"a\.png is too large an image to be read"):
        load(tmp_path)
    # Large ones are read without a warning; these have no pixels.
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png_start(9_500, 9_500))
    with pytest.raises(DataError, match=r"a\.png is not a whole image"):
        load(tmp_path)


def test_folders_within_are_classes(tmp_path: Path) -> None:
    for name in ("dogs/1.png", "cats/2.png", "cats/3.png"):
        picture(tmp_path / name)
    (tmp_path / "empty").mkdir()
    dataset = load(tmp_path)
    assert dataset.classes == {"label": ("cats", "dogs")}
    assert dataset.train.targets["label"].tolist() == [0, 0, 1]


def test_sizes_must_agree_or_are_changed(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", size=(9, 6))
    with pytest.raises(
        DataError,
        match=r"b\.png is 9x6 pixels large, but a\.png is 8x6: set image_size .* -o image_size=N",
    ):
        load(tmp_path)
    assert load(tmp_path, image_size=4).input_shape == (3, 4, 4)
    assert load(tmp_path, image_size=[4, 5]).input_shape == (3, 4, 5)
    with pytest.raises(DataError, match="image_size must be"):
        load(tmp_path, image_size=0)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"should hold images \(\.bmp, \.jpeg, .*\.webp\)"):
        load(tmp_path)
    picture(tmp_path / "a.png")
    with pytest.raises(DataError, match="at least two images, but holds one"):
        load(tmp_path)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"b\.png is not a whole image"):
        load(tmp_path)
    (tmp_path / "b.png").write_text("text")
    with pytest.raises(DataError, match=r"b\.png is not a whole image"):
        load(tmp_path)
