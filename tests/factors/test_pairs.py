"""Pairs: their law, the images they are made of, and how a training step draws them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from drpm.data import DataError, arm, mpi3d
from drpm.factors.own_pairs import OwnPairs, load_pairs
from drpm.factors.pairs import (
    MIXED_COUNTS,
    PairFactors,
    PairLaw,
    PairSampler,
    World,
    arm_world,
    mpi3d_world,
)
from tests.oracles import FALSE_ALARM, chi_square_p_value, generator

SIZES = (6, 6, 2, 3, 3, 40, 40)
SMALL = (3, 2, 4)


def small_world(device: str = "cpu") -> World:
    """Images whose one pixel is their number."""
    images = torch.arange(math.prod(SMALL), dtype=torch.uint8, device=device)
    return World(images.reshape(-1, 1, 1, 1), SMALL, ("a", "b", "c"))


def draw_pairs(sizes: Any, shared: Any, count: int, source: Any = None) -> PairFactors:
    return PairLaw(sizes, shared).draw(count, source)


def assert_proper(pairs: PairFactors, sizes: tuple[int, ...]) -> None:
    """What holds for every pair, whatever was drawn."""
    first, second, is_shared, count_shared, label = pairs
    for values in (first, second):
        assert bool(((values >= 0) & (values < torch.tensor(sizes))).all())
    assert torch.equal(first == second, is_shared)
    assert torch.equal(is_shared.sum(-1), count_shared)
    same = is_shared.gather(-1, label[..., None]).squeeze(-1)
    assert torch.equal(same, count_shared == len(sizes))
    assert not label[same].any()


@pytest.mark.parametrize("shared", [*range(8), "mixed", (2, 6), [7, 0]])
def test_pairs_share_as_many_factors_as_they_should(shared: Any) -> None:
    pairs = draw_pairs(SIZES, shared, 500, generator())
    assert_proper(pairs, SIZES)
    allowed = MIXED_COUNTS if shared == "mixed" else [shared] if isinstance(shared, int) else shared
    assert set(pairs.count_shared.tolist()) == set(allowed)


def test_the_mixed_numbers_are_equally_frequent() -> None:
    counts = draw_pairs(SIZES, "mixed", 20_000, generator()).count_shared
    found = np.array([(counts == n).sum() for n in MIXED_COUNTS])
    assert chi_square_p_value(found, np.full(4, 1 / 4)) > FALSE_ALARM


@pytest.mark.parametrize("shared", [1, 3, 5, 6])
def test_every_subset_of_factors_is_equally_often_shared(shared: int) -> None:
    is_shared = draw_pairs(SIZES, shared, 20_000, generator()).is_shared
    code = (is_shared.long() << torch.arange(7)).sum(1)
    subsets = [n for n in range(128) if n.bit_count() == shared]
    found = np.array([(code == subset).sum() for subset in subsets])
    assert chi_square_p_value(found, np.full(len(subsets), 1 / len(subsets))) > FALSE_ALARM


@pytest.mark.parametrize("shared", [0, 2])
def test_values_are_uniform_given_what_is_shared(shared: int) -> None:
    pairs = draw_pairs(SMALL, shared, 20_000, generator())
    first, second, is_shared = pairs[:3]
    for factor, size in enumerate(SMALL):
        for same in (False, True):
            rows = is_shared[:, factor] == same
            if not rows.any():
                continue
            code = first[rows, factor] * size + second[rows, factor]
            counts = torch.bincount(code, minlength=size * size).numpy()
            table = np.eye(size) if same else 1 - np.eye(size)
            p_value = chi_square_p_value(counts, table.reshape(-1) / table.sum())
            # Six tests at most.
            assert p_value > FALSE_ALARM / 6


def test_the_label_is_any_of_the_factors_that_differ() -> None:
    pairs = draw_pairs(SMALL, 1, 20_000, generator())
    shared = pairs.is_shared.long().argmax(1)
    counts = torch.bincount(shared * 3 + pairs.label, minlength=9).numpy()
    assert chi_square_p_value(counts, (1 - np.eye(3)).reshape(-1) / 6) > FALSE_ALARM


def test_the_sampler_compiles_whole() -> None:
    sampler = PairSampler(small_world(), (0, 2))
    compiled = torch.compile(
        lambda row: sampler({"row": row}, None), backend="aot_eager", fullgraph=True, dynamic=False
    )
    batch, again = compiled(torch.zeros(50)), compiled(torch.zeros(50))
    assert not torch.equal(batch["factors"], again["factors"])
    first, second = batch["factors"].unbind(-2)
    is_shared, label = batch["is_shared"], batch["label"]
    assert_proper(PairFactors(first, second, is_shared, is_shared.sum(-1), label), SMALL)
    for name, values in (("first", first), ("second", second)):
        numbers = (batch[name].squeeze((-1, -2, -3)) * 255).round().long()
        assert torch.equal(numbers, (values * torch.tensor([8, 4, 1])).sum(-1))


@pytest.mark.cuda
@pytest.mark.parametrize("shared", [3, "mixed"])
def test_a_graph_replays_the_sampler_with_new_pairs(shared: Any) -> None:
    sampler = PairSampler(arm_world("cuda", angles=2, image_size=16), shared)
    rows, source = torch.zeros(64, device="cuda"), generator(device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(source)
    sampler({"row": rows}, source)
    with torch.cuda.graph(graph):
        batch = sampler({"row": rows}, source)
    seen = []
    for _ in range(2):
        graph.replay()
        first, second = batch["factors"].cpu().unbind(1)
        is_shared = batch["is_shared"].cpu()
        pairs = PairFactors(first, second, is_shared, is_shared.sum(1), batch["label"].cpu())
        assert_proper(pairs, sampler.world.sizes)
        seen.append(first)
    assert not torch.equal(*seen)


def test_the_world_of_the_arm_is_what_the_arm_draws() -> None:
    world = arm_world(angles=2, image_size=16)
    assert world.sizes == (6, 6, 2, 3, 3, 2, 2)
    assert world.names == arm.FACTOR_NAMES
    assert world.image_shape == (3, 16, 16)
    assert world.images.dtype == torch.uint8
    factors = draw_pairs(world.sizes, 0, 200, generator()).first
    drawn = factors.clone()
    drawn[:, -2:] = torch.tensor([10, 30])[factors[:, -2:]]
    images = world.images_of(factors)
    assert images.dtype == torch.float32
    error = (images - arm.render(drawn, image_size=16)).abs().max()
    # Rounding to bytes, and that of single precision on the way.
    assert float(error) <= 0.5 / 255 + 1e-6
    # Any leading dimensions.
    assert torch.equal(world.images_of(factors.reshape(4, 50, 7)).flatten(0, 1), images)
    assert torch.equal(world.images_of(factors[3]), images[3])


@pytest.mark.parametrize("chunk", [7, 1000])
def test_the_world_of_mpi3d_has_the_order_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    sizes = (2, 2, 2, 3, 3, 4, 4)
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    monkeypatch.setattr(mpi3d, "FACTOR_SIZES", sizes)
    monkeypatch.setattr(mpi3d, "NUM_IMAGES", 1152)
    monkeypatch.setattr("drpm.factors.pairs._CHUNK_CPU", chunk)
    pixels = np.zeros((1152, 64, 64, 3), np.uint8)
    number = np.arange(1152)
    pixels[:, 0, 5, 0], pixels[:, 0, 5, 1] = number % 256, number // 256
    (tmp_path / "mpi3d").mkdir()
    np.savez(tmp_path / "mpi3d" / "mpi3d_toy.npz", images=pixels)

    def numbers(world: World, factors: Tensor) -> Tensor:
        images = (world.images_of(factors) * 255).round().long()
        return images[:, 0, 0, 5] + 256 * images[:, 1, 0, 5]

    everything = mpi3d_world(angles=4)
    assert everything.sizes == sizes
    assert everything.names == mpi3d.FACTOR_NAMES
    factors = mpi3d.factors_of(torch.arange(1152))
    assert torch.equal(numbers(everything, factors), torch.arange(1152))
    half = mpi3d_world(angles=2)
    assert half.sizes == (2, 2, 2, 3, 3, 2, 2)
    factors = draw_pairs(half.sizes, 0, 50, generator()).first
    in_file = torch.cat([factors[:, :5], 2 * factors[:, 5:] + 1], 1)
    assert torch.equal(numbers(half, factors), mpi3d.index_of(in_file))
    with pytest.raises(DataError, match="no variant 'unreal'"):
        mpi3d_world(variant="unreal")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_pairs(SIZES, 8, 5), "shared must be a whole number from 0 to 7.* got 8"),
        (lambda: draw_pairs(SIZES, -1, 5), "shared must be .* but got -1"),
        (lambda: draw_pairs(SIZES, (), 5), r"shared must be .* but got \(\)"),
        (lambda: draw_pairs(SIZES, (1, 2.0), 5), r"shared must be .* but got \(1, 2.0\)"),
        (lambda: draw_pairs(SIZES, "some", 5), "shared must be .* or 'mixed', but got 'some'"),
        (lambda: draw_pairs(SMALL, "mixed", 5), "shared must be .* from 0 to 3.* got 'mixed'"),
        (lambda: draw_pairs((6, 1), 0, 5), r"sizes must be .* 2 or more.* got \(6, 1\)"),
        (lambda: draw_pairs((), 0, 5), r"sizes must be whole numbers"),
        (lambda: draw_pairs((40,) * 7, 0, 5), "sizes must fit a 64-bit number"),
        (lambda: arm_world(angles=1), "angles must be a whole number from 2 to 40, but got 1"),
        (lambda: arm_world(angles=41), "angles must be a whole number from 2 to 40, but got 41"),
        (lambda: World(torch.zeros(6, 1, 1, 1), (2, 3), ("a", "b")), "images must be bytes"),
        (
            lambda: World(torch.zeros(5, 1, 1, 1).byte(), (2, 3), ("a", "b")),
            r"images must be bytes of the shape \(6, C, H, W\), .* but got .* \(5, 1, 1, 1\)",
        ),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def write(path: Path, value: int, size: tuple[int, int] = (5, 4), mode: str = "RGB") -> None:
    """An image of one grey value; the size is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(path)


def value(images: Tensor) -> list[int]:
    return [int(x) for x in (images.mean((1, 2, 3)) * 255).round()]


def test_pairs_from_numbered_images(tmp_path: Path) -> None:
    write(tmp_path / "b_2.PNG", 40)
    write(tmp_path / "b_1.png", 30)
    write(tmp_path / "a-b-1.png", 10)
    write(tmp_path / "a-b-2.jpg", 20)
    (tmp_path / ".hidden.png").write_text("not an image")
    (tmp_path / "notes.txt").write_text("not an image")
    pairs = load_pairs(tmp_path)
    assert pairs.names == ("a-b", "b")
    assert pairs.first.shape == pairs.second.shape == (2, 3, 4, 5)
    assert value(pairs.first) == [10, 30]
    assert value(pairs.second) == [20, 40]
    assert load_pairs(str(tmp_path), image_size=8).first.shape == (2, 3, 8, 8)


def test_pairs_from_two_folders(tmp_path: Path) -> None:
    for row, name in enumerate(["x", "10", "9"]):
        write(tmp_path / "first" / f"{name}.png", row, mode="L")
        write(tmp_path / "second" / f"{name}.jpeg", 100 + row, mode="L")
    (tmp_path / "empty").mkdir()
    pairs = load_pairs(tmp_path)
    assert pairs.names == ("10", "9", "x")
    assert pairs.first.shape == (3, 1, 4, 5)
    assert value(pairs.first) == [1, 2, 0]
    assert value(pairs.second) == [101, 102, 100]


def test_pairs_from_tensors() -> None:
    images = torch.zeros(2, 11, 1, 8, 8)
    assert OwnPairs(*images).names == tuple(map(str, range(11)))
    assert OwnPairs(*images, tuple("abcdefghijk")).names[-1] == "k"
    with pytest.raises(ValueError, match="names must be 11, one for each pair, but got 2"):
        OwnPairs(*images, ("a", "b"))
    for first, second in (
        (images[0], torch.zeros(11, 1, 8, 9)),
        (images[0, :0], images[1, :0]),
        (images[0, 0], images[1, 0]),
    ):
        with pytest.raises(ValueError, match=r"first and second must be images \(P, C, H, W\) of"):
            OwnPairs(first, second)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_pairs_from_arrays(tmp_path: Path, save: Callable[..., None]) -> None:
    first = np.random.default_rng(0).integers(256, size=(6, 4, 5, 3), dtype=np.uint8)
    save(tmp_path / "pairs.npz", first=first, second=255 - first)
    pairs = load_pairs(tmp_path / "pairs.npz")
    assert pairs.names == tuple("012345")
    assert pairs.first.shape == (6, 3, 4, 5)
    torch.testing.assert_close(pairs.first, 1 - pairs.second)
    np.testing.assert_allclose(pairs.first.permute(0, 2, 3, 1) * 255, first, atol=1e-4)
    small = load_pairs(tmp_path / "pairs.npz", image_size=(2, 5))
    assert small.first.shape == (6, 3, 2, 5)
    torch.testing.assert_close(small.first.mean(), pairs.first.mean(), atol=0.05, rtol=0)
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.npz"]


def bad_folders(folder: Path) -> dict[str, str]:
    """Folders that hold no pairs, each with what is said of it."""
    write(folder / "lone" / "a-1.png", 1)
    write(folder / "lone" / "b-1.png", 1)
    write(folder / "lone" / "b-2.png", 1)
    write(folder / "bare" / "holiday.png", 1)
    write(folder / "twice" / "a-1.png", 1)
    write(folder / "twice" / "a_1.png", 1)
    write(folder / "sizes" / "a-1.png", 1)
    write(folder / "sizes" / "a-2.png", 1, size=(9, 9))
    write(folder / "missing" / "first" / "a.png", 1)
    write(folder / "missing" / "first" / "b.png", 1)
    write(folder / "missing" / "second" / "a.png", 1)
    write(folder / "classes" / "cats" / "a.png", 1)
    write(folder / "classes" / "dogs" / "a.png", 1)
    write(folder / "damaged" / "a-1.png", 1)
    (folder / "damaged" / "a-2.png").write_bytes(b"no image")
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("no image")
    (folder / "damaged.npz").write_bytes(b"no array")
    np.savez(folder / "names.npz", one=np.zeros(3), two=np.zeros(3))
    np.savez(folder / "shapes.npz", first=np.zeros((3, 4, 5)), second=np.zeros((2, 4, 5)))
    np.savez(folder / "table.npz", first=np.zeros((3, 4)), second=np.zeros((3, 4)))
    np.savez(folder / "large.npz", first=np.full((3, 4, 5), 7.0), second=np.zeros((3, 4, 5)))
    np.savez(folder / "objects.npz", first=np.array([{}]), second=np.array([{}]))
    with (folder / "single.npz").open("wb") as file:
        np.save(file, np.zeros((3, 4, 5)))
    return {
        "nowhere": "nowhere does not exist",
        "lone": r"a-1.png should have a partner, but its pair has no second image",
        "bare": r"holiday.png should be named as one of a pair, such as holiday-1.png",
        "twice": r"a_1.png has the name and number of a-1.png",
        "sizes": r"a-2.png is 9x9 pixels large, but a-1.png is 5x4: set image_size",
        "missing": r"first/b.png should have a partner, but its pair has no second image",
        "classes": "two folders `first` and `second` of images, but does not",
        "damaged": r"a-2.png cannot be read as an image",
        "empty": "empty should hold pairs of images",
        "text.txt": "text.txt should be a folder of images or an npz file",
        "damaged.npz": "damaged.npz is not a whole npz file",
        "names.npz": "the arrays `first` and `second`, but holds one, two",
        "shapes.npz": r"one shape and type, .* \(3, 4, 5\) and `second` .* \(2, 4, 5\)",
        "table.npz": r"should hold images .* `first` is float64 of the shape \(3, 4\)",
        "large.npz": "numbers from 0 to 1, but holds float64 from 0.0 to 7.0",
        "objects.npz": "objects.npz is not a whole npz file of numbers",
        "single.npz": "single.npz is not a whole npz file of numbers",
    }


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    for name, message in bad_folders(tmp_path).items():
        with pytest.raises(DataError, match=message):
            load_pairs(tmp_path / name)
