"""The drawn arm: its figures against independent geometry, and what its factors do to an image."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from drpm.data import arm
from drpm.data.mpi3d import FACTOR_NAMES, FACTOR_SIZES
from drpm.data.types import DataError

# Changing one factor by one changes an image by at least this much in the mean over its pixels
# and channels, and some pixel by at least that much. The weakest change there is, a small brown
# ball that moves straight towards the camera, makes 0.00014 and 0.08.
MIN_MEAN_CHANGE = 1e-4
MIN_PIXEL_CHANGE = 0.06

BROWN = list(arm.OBJECT_COLORS).index("brown")
SPHERE = list(arm.SHAPES).index("sphere")


def rotations(count: int) -> Tensor:
    matrix = torch.linalg.qr(torch.randn(count, 3, 3)).Q
    return matrix * matrix.det().sign()[:, None, None]


# The vertices of each solid, written down apart from the planes that the drawing uses.
def ring(sides: int, height: float) -> list[tuple[float, float, float]]:
    angles = [2 * math.pi * k / sides for k in range(sides)]
    return [(math.cos(angle), math.sin(angle), height) for angle in angles]


SOLIDS = {
    "cube": (arm.prism(4, 0.7), ring(4, -0.7) + ring(4, 0.7)),
    "hexagonal": (arm.prism(6, 0.5), ring(6, -0.5) + ring(6, 0.5)),
    "pyramid": (arm.prism(4, 0.6, apex=True), [*ring(4, -0.6), (0.0, 0.0, 0.6)]),
    "cone": (arm.prism(20, 1.4, apex=True), [*ring(20, -1.4), (0.0, 0.0, 1.4)]),
    "cylinder": (arm.prism(20, 1.6), ring(20, -1.6) + ring(20, 1.6)),
}


@pytest.mark.parametrize("name", sorted(SOLIDS))
def test_a_solid_has_the_outline_of_its_projected_vertices(name: str) -> None:
    solid, vertices = SOLIDS[name]
    turned = rotations(20)
    centers = torch.arange(48) + 0.5 - 24
    rows, columns = torch.meshgrid(centers, centers, indexing="ij")
    x, y = columns.reshape(1, -1), rows.reshape(1, -1)
    radius = torch.full((20, 1), 9.0)
    light = torch.tensor([[0.0, 0.0, 1.0]]).expand(20, 3)
    distance, lit = arm.convex_solid(
        solid, x.expand(20, -1), y.expand(20, -1), turned, radius, light
    )
    assert float(lit.min()) > -1e-5  # lit from the viewer's place, no visible face is dark
    assert float(lit.max()) < 1 + 1e-5
    projected = 9.0 * torch.tensor(vertices) @ turned.mT
    pixels = torch.cat([x, y]).T.double().numpy()
    for k in range(20):
        hull = ConvexHull(projected[k, :, :2].double().numpy())
        expected = (pixels @ hull.equations[:, :2].T + hull.equations[:, 2]).max(axis=1)
        # In 3,000 rotations the largest error was 0.0042 pixels, of an edge that is seen end-on.
        np.testing.assert_allclose(distance[k].numpy(), expected, atol=0.02)
        area = float(arm.coverage(distance[k]).sum())
        assert area == pytest.approx(hull.volume, rel=0.03)


@pytest.mark.parametrize("column", range(7), ids=FACTOR_NAMES)
def test_each_factor_shows(column: int) -> None:
    factors = arm.sample_factors(200)
    factors[:, column] %= FACTOR_SIZES[column] - 1
    following = factors.clone()
    following[:, column] += 1
    change = (arm.render(factors) - arm.render(following)).abs().flatten(1)
    assert float(change.mean(dim=1).min()) > MIN_MEAN_CHANGE
    assert float(change.amax(dim=1).min()) > MIN_PIXEL_CHANGE


def test_all_settings_of_the_joints_differ() -> None:
    """Not only neighbors: no two of the 1600 settings may put everything into one place."""
    angles = torch.cartesian_prod(torch.arange(40), torch.arange(40))
    factors = torch.tensor([BROWN, SPHERE, 0, 1, 0]).repeat(len(angles), 1)
    images = arm.render(torch.cat([factors, angles], dim=1)).mean(dim=1).flatten(1)
    distances = torch.cdist(images, images).fill_diagonal_(torch.inf)
    assert float(distances.min()) > MIN_PIXEL_CHANGE


def test_an_object_lies_within_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = arm.sample_factors(600)
    factors[:, 2] = 1
    factors[:, 6] = 20 + factors[:, 6] // 2  # towards the camera, where objects look largest
    images = arm.render(factors)
    monkeypatch.setattr(arm, "WINDOW", 1.0)
    torch.testing.assert_close(arm.render(factors), images, rtol=0, atol=1e-5)


def test_images_do_not_follow_the_default_precision_or_autocast() -> None:
    factors = arm.sample_factors(12)
    images = arm.render(factors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(arm.render(factors), images)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(arm.render(factors), images)
        assert arm.render(factors, image_size=20).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.cuda
def test_a_gpu_draws_the_same() -> None:
    factors = arm.sample_factors(300)
    drawn = arm.render(factors.cuda())
    assert drawn.is_cuda
    torch.testing.assert_close(drawn.cpu(), arm.render(factors), rtol=0, atol=1e-2)


def test_the_data_set() -> None:
    dataset = arm.load(seed=3, num_train=30, num_test=20)
    assert (len(dataset.train), len(dataset.test)) == (30, 20)
    assert 0 <= float(dataset.train.inputs.min()) < 0.2
    assert 0.8 < float(dataset.train.inputs.max()) <= 1
    assert tuple(dataset.train.targets) == FACTOR_NAMES
    factors = torch.stack(list(dataset.train.targets.values()), dim=1)
    assert torch.equal(arm.render(factors), dataset.train.inputs)
    other = arm.load(seed=4, num_train=30, num_test=20)
    assert not torch.equal(other.test.inputs, dataset.test.inputs)
    with pytest.raises(DataError, match="image_size must be at least 16, but got 8"):
        arm.render(factors, image_size=8)


@pytest.mark.parametrize("name", sorted(SOLIDS))
def test_a_pixel_shows_the_light_of_the_face_it_lies_on(name: str) -> None:
    solid, vertices = SOLIDS[name]
    count, size = 20, 100.0  # large, so that the soft edges between faces are far from the middles
    light = torch.tensor([[0.48, -0.6, 0.64]]).expand(count, 3)
    hull = ConvexHull(np.array(vertices))
    middles = torch.from_numpy(hull.points[hull.simplices].mean(axis=1)).float()
    normals = torch.from_numpy(hull.equations[:, :3]).float()
    turned = rotations(count)
    middles, normals = size * middles @ turned.mT, normals @ turned.mT
    distance, lit = arm.convex_solid(
        solid, middles[..., 0], middles[..., 1], turned, torch.full((count, 1), size), light
    )
    seen = normals[..., 2] > 0.1
    assert int(seen.sum()) >= 3 * count // 2
    assert bool((distance[seen] < 0).all())
    expected = (normals * light[:, None]).sum(dim=2)
    torch.testing.assert_close(lit[seen], expected[seen], rtol=0, atol=0.02)


def test_the_object_hides_the_joint_or_is_hidden_by_it() -> None:
    """Pointing at a low camera the arm ends before its joint, pointing away behind it."""
    low = 2
    above = torch.tensor([[[0.0, 0.0, arm.COLUMN_HEIGHT]]])
    joint = arm.Camera(torch.tensor([low]), 64).project(above)[0].flatten()
    column, row = int(joint[0]), 63 - int(joint[1])
    red_ball = [2, SPHERE, 1, low, 0]
    towards, away = arm.render(torch.tensor([[*red_ball, 20, 33], [*red_ball, 19, 0]]))
    assert float(towards[0, row, column] - towards[1, row, column]) > 0.3
    assert float((away[0, row, column] - away[1, row, column]).abs()) < 0.05
