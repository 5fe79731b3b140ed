"""Pairs: how they are drawn, the images they are made of, and files of them; compiled steps."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils
from PIL import Image
from torch import Tensor

from drpm.data import arm, mpi3d
from drpm.factors.config import FactorsConfig
from drpm.factors.models import FactorVAE, factor_objective
from drpm.factors.pairs import (
    MIXED_COUNTS,
    OwnPairs,
    PairSampler,
    World,
    arm_world,
    load_pairs,
    mpi3d_world,
)
from drpm.training.compiling import BACKEND, compile_step
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.program import ExponentialSchedule, Program
from tests.factors.toys import draw, numbered
from tests.oracles import FALSE_ALARM, chi_square_p_value, generator

SIZES = (6, 6, 2, 3, 3, 4, 5)
SMALL = (3, 2, 4)


def assert_proper(batch: dict[str, Tensor], sizes: tuple[int, ...]) -> None:
    """What holds for every pair, whatever was drawn."""
    first, second = batch["factors"].unbind(1)
    is_shared, label = batch["is_shared"], batch["label"]
    for values in (first, second):
        assert bool(((values >= 0) & (values < torch.tensor(sizes))).all())
    assert torch.equal(first == second, is_shared)
    same = is_shared.gather(-1, label[..., None]).squeeze(-1)
    assert torch.equal(same, is_shared.all(-1))
    assert not label[same].any()


@pytest.mark.parametrize("which", ["fixed", "random"])
@pytest.mark.parametrize("shared", [0, 3, 7, "mixed"])
def test_pairs_share_as_many_factors_as_they_should(shared: Any, which: str) -> None:
    batch = draw(500, shared, numbered(SIZES), which=which)
    assert_proper(batch, SIZES)
    count = batch["is_shared"].sum(-1, keepdim=True)
    assert set(count.flatten().tolist()) == set(MIXED_COUNTS if shared == "mixed" else [shared])
    if which == "fixed":
        assert torch.equal(batch["is_shared"], torch.arange(7) < count)


@pytest.mark.parametrize("shared", [3, "mixed"])
def test_every_number_and_subset_of_factors_is_equally_often_shared(shared: Any) -> None:
    code = (draw(20_000, shared, numbered(SIZES))["is_shared"].long() << torch.arange(7)).sum(1)
    numbers = MIXED_COUNTS if shared == "mixed" else (shared,)
    subsets = [n for n in range(128) if n.bit_count() in numbers]
    probs = [1 / math.comb(7, n.bit_count()) / len(numbers) for n in subsets]
    found = np.array([(code == subset).sum() for subset in subsets])
    assert chi_square_p_value(found, np.array(probs)) > FALSE_ALARM


@pytest.mark.parametrize("shared", [0, 2])
def test_values_are_uniform_given_what_is_shared(shared: int) -> None:
    batch = draw(20_000, shared, numbered(SMALL))
    first, second = batch["factors"].unbind(1)
    for factor, size in enumerate(SMALL):
        for same in (False, True):
            rows = batch["is_shared"][:, factor] == same
            if not rows.any():
                continue
            code = first[rows, factor] * size + second[rows, factor]
            counts = torch.bincount(code, minlength=size * size).numpy()
            table = np.eye(size) if same else 1 - np.eye(size)
            p_value = chi_square_p_value(counts, table.reshape(-1) / table.sum())
            # Six tests at most.
            assert p_value > FALSE_ALARM / 6


def test_the_label_is_any_of_the_factors_that_differ() -> None:
    batch = draw(20_000, 1, numbered(SMALL))
    shared = batch["is_shared"].long().argmax(1)
    counts = torch.bincount(shared * 3 + batch["label"], minlength=9).numpy()
    # Two tests.
    assert chi_square_p_value(counts, (1 - np.eye(3)).reshape(-1) / 6) > FALSE_ALARM / 2
    labels = draw(20_000, 1, numbered(SMALL), which="fixed")["label"]
    assert chi_square_p_value(labels.bincount().numpy(), np.array([0, 0.5, 0.5])) > FALSE_ALARM / 2


def test_the_sampler_compiles_whole() -> None:
    sampler = PairSampler(numbered(SMALL), 2)
    compiled = torch.compile(
        lambda row: sampler({"row": row}, None), backend="aot_eager", fullgraph=True, dynamic=False
    )
    batch, again = compiled(torch.zeros(50)), compiled(torch.zeros(50))
    assert not torch.equal(batch["factors"], again["factors"])
    assert_proper(batch, SMALL)
    for name, values in zip(("first", "second"), batch["factors"].unbind(-2), strict=True):
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
        seen.append({name: x.cpu() for name, x in batch.items()})
        assert_proper(seen[-1], sampler.world.sizes)
    assert not torch.equal(*(x["factors"] for x in seen))


def test_the_world_of_the_arm_is_what_the_arm_draws() -> None:
    world = arm_world(angles=2, image_size=16)
    assert world.sizes == (6, 6, 2, 3, 3, 2, 2)
    factors = draw(200, 0, world)["factors"][:, 0]
    drawn = factors.clone()
    drawn[:, -2:] = torch.tensor([10, 30])[factors[:, -2:]]
    images = world.images_of(factors)
    assert images.dtype == torch.float32
    error = (images - arm.render(drawn, image_size=16)).abs().max()
    # Rounding to bytes, and that of single precision on the way.
    assert float(error) <= 0.5 / 255 + 1e-6
    # Any leading dimensions.
    assert torch.equal(world.images_of(factors.reshape(4, 50, 7)).flatten(0, 1), images)


def test_the_world_of_mpi3d_has_the_order_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    monkeypatch.setattr(mpi3d, "FACTOR_SIZES", (2, 2, 2, 3, 3, 4, 4))
    monkeypatch.setattr(mpi3d, "NUM_IMAGES", 1152)
    monkeypatch.setattr("drpm.factors.pairs._CHUNK", 7)
    pixels = np.zeros((1152, 64, 64, 3), np.uint8)
    pixels[:, 0, 5, 0], pixels[:, 0, 5, 1] = np.arange(1152) % 256, np.arange(1152) // 256
    (tmp_path / "mpi3d").mkdir()
    np.savez(tmp_path / "mpi3d" / "mpi3d_toy.npz", images=pixels)
    for angles, places in ((4, [0, 1, 2, 3]), (2, [1, 3])):
        world = mpi3d_world(angles=angles)
        assert world.sizes == (2, 2, 2, 3, 3, angles, angles)
        factors = draw(50, 0, world)["factors"][:, 0]
        images = (world.images_of(factors) * 255).round().long()
        factors[:, 5:] = torch.tensor(places)[factors[:, 5:]]
        assert torch.equal(images[:, 0, 0, 5] + 256 * images[:, 1, 0, 5], mpi3d.index_of(factors))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw(5, 8, numbered(SIZES)), "shared must be .* from 0 to 7.* got 8"),
        (lambda: draw(5, "mixed", numbered(SMALL)), "shared must be .* from 0 to 3.* got 'mixed'"),
        (lambda: draw(5, which="first"), "which must be 'fixed' or 'random', but got 'first'"),
        (lambda: numbered((6, 1)), r"sizes must be .* 2 or more.* got \(6, 1\)"),
        (lambda: arm_world(angles=41), "angles must be an integer from 2 to 40, but got 41"),
        (lambda: World(torch.zeros(6, 1, 1, 1), (2, 3)), "images must be bytes"),
        (
            lambda: World(torch.zeros(5, 1, 1, 1).byte(), (2, 3)),
            r"images must be bytes of shape \(6, C, H, W\), .* but got .* \(5, 1, 1, 1\)",
        ),
        (lambda: OwnPairs(*torch.zeros(2, 9, 1, 8, 8), ("a",)), "names must be 9, .* but got 1"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def write(path: Path, value: int, size: tuple[int, int] = (5, 4), mode: str = "RGB") -> None:
    """An image of one gray value; the size is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(path)


def value(images: Tensor) -> list[int]:
    return [int(x) for x in (images.mean((1, 2, 3)) * 255).round()]


def test_pairs_from_folders(tmp_path: Path) -> None:
    write(tmp_path / "b_2.PNG", 40)
    write(tmp_path / "b_1.png", 30)
    write(tmp_path / "a-b-1.png", 10)
    write(tmp_path / "a-b-2.jpg", 20)
    (tmp_path / ".hidden.png").write_text("not an image")
    (tmp_path / "notes.txt").write_text("not an image")
    for row, name in enumerate(["x", "10", "9"]):
        write(tmp_path / "two" / "first" / f"{name}.png", row, mode="L")
        write(tmp_path / "two" / "second" / f"{name}.jpeg", 100 + row, mode="L")
    (tmp_path / "two" / "empty").mkdir()
    for folder, names, shape, first, second in (
        (tmp_path, ("a-b", "b"), (2, 3, 4, 5), [10, 30], [20, 40]),
        (tmp_path / "two", ("10", "9", "x"), (3, 1, 4, 5), [1, 2, 0], [101, 102, 100]),
    ):
        pairs = load_pairs(folder)
        assert pairs.names == names
        assert pairs.first.shape == pairs.second.shape == shape
        assert (value(pairs.first), value(pairs.second)) == (first, second)
    assert load_pairs(str(tmp_path), image_size=8).first.shape == (2, 3, 8, 8)


def test_pairs_from_arrays(tmp_path: Path) -> None:
    first = np.random.default_rng(0).integers(256, size=(6, 4, 5, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "pairs.npz", first=first, second=255 - first)
    pairs = load_pairs(tmp_path / "pairs.npz")
    assert pairs.names == tuple("012345")
    assert pairs.first.shape == (6, 3, 4, 5)
    torch.testing.assert_close(pairs.first, 1 - pairs.second)
    np.testing.assert_allclose(pairs.first.permute(0, 2, 3, 1) * 255, first, atol=1e-4)
    small = load_pairs(tmp_path / "pairs.npz", image_size=(2, 5))
    assert small.first.shape == (6, 3, 2, 5)
    torch.testing.assert_close(small.first.mean(), pairs.first.mean(), atol=0.05, rtol=0)


IMAGES = {  # the names of images in a folder, and what is said of it
    "lone": (("a-1", "b-1", "b-2"), "a-1.png should have a partner"),
    "bare": (("holiday", "a-1"), r"holiday.png should be one of a pair, such as .*holiday-1.png"),
    "twice": (("a-1", "a_1"), r"a_1.png has the same name and number as a-1.png"),
    "missing": (("first/a", "first/b", "second/a"), r"first/b.png should have a partner"),
    "classes": (("cats/a-1", "dogs/a-2"), "cats/a-1.png should be one of a pair"),
}
FIVES, OBJECTS = np.full((3, 4, 5), 5.0), np.array([{}])
ARRAYS = {
    "names": ((), "images `first` and `second`, but contains nothing"),
    "table": (np.zeros((2, 3, 4)), r"contains first of shape \(3, 4\), second of shape \(3, 4\)"),
    "shapes": ((FIVES / 5, FIVES[1:] / 5), "first and second must be .* of one shape"),
    "large": ((FIVES, FIVES), "numbers from 0 to 1, but contains float64 from 5.0 to 5.0"),
    "objects": ((OBJECTS, OBJECTS), "objects.npz cannot be read"),
}


def test_bad_files_are_refused(tmp_path: Path) -> None:
    messages = {
        "nowhere": "nowhere does not exist",
        "sizes": r"a-2.png has 9x9 pixels, but a-1.png has 5x4: set image_size",
        "empty": "empty should contain images",
        "text.txt": "text.txt cannot be read",
    }
    for name, (images, message) in IMAGES.items():
        for image in images:
            write(tmp_path / name / f"{image}.png", 1)
        messages[name] = message
    for name, (views, message) in ARRAYS.items():
        np.savez(tmp_path / name, **dict(zip(("first", "second"), views, strict=False)))
        messages[f"{name}.npz"] = message
    write(tmp_path / "sizes" / "a-1.png", 1)
    write(tmp_path / "sizes" / "a-2.png", 1, size=(9, 9))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no image")
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message):
            load_pairs(tmp_path / name)


def make(method: Any, objective: Any, device: str = "cpu") -> Program:
    """In float64, so that no rounding decides which dimensions are shared.

    By plain steps down: Adam makes whole steps even of gradients that are nothing but rounding.
    """
    steps: Any = {"optimizer": "sgd", "learning_rate": 1e-3, "precision": "64-true"}
    training = TrainingConfig(epochs=1, batch_size=8, device=device, **steps)
    config = FactorsConfig(method=method, objective=objective, draws=2, training=training)
    pairs = draw(16, seed=1)
    torch.manual_seed(0)
    program = Program(
        FactorVAE((1, 8, 8), config),
        factor_objective,
        {name: pairs[name] for name in ("first", "second", "label")},
        training,
        schedules={"temperature": ExponentialSchedule(1.0, 0.5, 2)},
        devices=Devices(device),
    )
    # Compiled, it draws from the device's own noise; so shall the other.
    program._evaluate.generator = None  # type: ignore[attr-defined]
    program.shuffle()
    return program


def take_step(program: Program, seed: int) -> tuple[Any, Any]:
    """The terms of a step, and the gradients that it followed."""
    torch.manual_seed(seed)
    program.step()
    return program.readings(), {name: x.grad for name, x in program.model.named_parameters()}


def graphs_called() -> int:
    return int(torch._dynamo.utils.counters["stats"]["calls_captured"])


def same_steps(method: str, objective: str, backend: str, device: str, **near: float) -> None:
    eager, compiled = (make(method, objective, device) for _ in range(2))
    expected = [take_step(eager, seed) for seed in range(2)]
    assert compile_step(compiled, backend)
    calls = graphs_called()
    assert calls > 0
    found = [take_step(compiled, seed) for seed in range(2)]
    assert graphs_called() == calls
    for one, other in zip(found, expected, strict=True):
        assert one[0].names == other[0].names
        torch.testing.assert_close(one[0].values, other[0].values, **near)
        torch.testing.assert_close(one[1], other[1], **near)
    # The number of shared dimensions has a gradient.
    assert found[0][1]["aggregation.weights.weight"].abs().max() > 1e-6


@pytest.mark.parametrize("method", ["drpm", "hg"])
def test_a_compiled_step_equals_an_eager_one(method: str) -> None:
    # Traces as inductor does, but calls torch's own operations.
    same_steps(method, "bounds", "aot_eager", "cpu", rtol=1e-9, atol=1e-10)


def still_noise(*shape: Any, dtype: Any = torch.float32, device: Any, **_: Any) -> torch.Tensor:
    """Numbers from 0 to 1 that look random and are the same whoever asks, and when."""
    count = torch.arange(
        math.prod(shape if isinstance(shape[0], int) else shape[0]), dtype=dtype, device=device
    )
    return (torch.sin(count + 1) * 43758.5453).frac().abs().reshape(*shape)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("method", "objective"), [("drpm", "bounds"), ("drpm", "exact"), ("hg", "bounds")]
)
def test_a_compiled_step_on_a_gpu(
    method: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compilers draw noise in an order of their own.
    monkeypatch.setattr(torch, "rand", still_noise)
    monkeypatch.setattr(torch, "randn", still_noise)
    same_steps(method, objective, BACKEND, "cuda", rtol=1e-6, atol=1e-8)


@pytest.mark.cuda
@pytest.mark.parametrize("shared", [0, 3, 7, "mixed"])
def test_compiled_pairs_share_as_many_as_they_are_told(shared: Any) -> None:
    """All that is made of one draw is made of the same: compilers may draw noise again."""
    sampler = PairSampler(arm_world("cuda", angles=2, image_size=16), shared)
    rows = {"row": torch.zeros(4096, device="cuda")}
    compiled = torch.compile(
        lambda: sampler(rows, None), backend=BACKEND, fullgraph=True, dynamic=False
    )
    torch.manual_seed(0)
    batch, again = ({name: x.cpu() for name, x in compiled().items()} for _ in range(2))
    assert_proper(batch, sampler.world.sizes)
    assert set(batch["is_shared"].sum(-1).tolist()) == set(sampler.counts)
    assert not torch.equal(batch["factors"], again["factors"])
