"""Small files in the true formats of the data sets."""

import gzip
import struct
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """An array in the idx format."""
    header = struct.pack(">BBBB", 0, 0, 0x08, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, train: int = 40, test: int = 20, compressed: bool = True) -> None:
    """The four files of MNIST, with random images; the label of image i is i mod 10."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content, path = idx_bytes(array), folder / f"{part}-{name}-ubyte"
            if compressed:
                content, path = gzip.compress(content), path.with_suffix(".gz")
            path.write_bytes(content)


def stl10_images(count: int, seed: int) -> NDArray[np.uint8]:
    """Random images (count, 3, 96, 96)."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 96, 96), np.uint8)


def write_stl10(folder: Path, *, train: int = 6, test: int = 4) -> None:
    """The four files of STL-10: each channel column by column, labels from 1 to 10."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate((("train", train), ("test", test))):
        images = stl10_images(count, seed)
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)
        (folder / f"{part}_y.bin").write_bytes(labels.tobytes())


CELEBA_ATTRIBUTES = ("Smiling", "Bald", "Young")  # not in alphabetical order, on purpose


def write_celeba(folder: Path) -> None:
    """Aligned images of the true size and the two lists, image i of one gray, 20 i."""
    images = folder / "img_align_celeba"
    images.mkdir(parents=True, exist_ok=True)
    rows, split = [], []
    for index, part in enumerate((0, 0, 0, 1, 1, 2)):
        name = f"{index + 1:06d}.jpg"
        Image.new("RGB", (178, 218), (20 * index,) * 3).save(images / name)
        values = ["1" if (index >> place) & 1 else "-1" for place in range(len(CELEBA_ATTRIBUTES))]
        rows.append(f"{name}  {'  '.join(values)}")
        split.append(f"{name} {part}")
    head = [str(len(rows)), " ".join(CELEBA_ATTRIBUTES) + " "]
    (folder / "list_attr_celeba.txt").write_text("\n".join([*head, *rows]) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(split) + "\n")


def png_start(width: int, height: int) -> bytes:
    """A PNG file that ends where its pixels begin."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    length, checksum = struct.pack(">I", 13), struct.pack(">I", crc32(header))
    return b"\x89PNG\r\n\x1a\n" + length + header + checksum + struct.pack(">I", 100) + b"IDAT"
