r"""A rendered arm that holds an object: seven known factors determine every image.

The factors and their sizes are those of MPI3D (Gondal et al., 2019), whose images show a real arm.
Axes are right, away from the viewer, and up, with the base of the arm at the origin. The nine
static backgrounds (three camera heights, three arc colors) are cached.

The coverage of a pixel at signed distance :math:`d` from an outline, in pixels and negative inside,
is :math:`\mathrm{clamp}(1/2 - d, 0, 1)`. Functions draw one figure per image: x and y are the
columns and rows of the pixels, (P,) or (N, P); radii are in pixels, (N, 1); light is the unit
vector to the light in the viewer's frame, (N, 3).
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.data import mpi3d
from drpm.data.mpi3d import FACTOR_NAMES as FACTOR_NAMES
from drpm.data.mpi3d import FACTOR_SIZES as FACTOR_SIZES
from drpm.data.mpi3d import FACTORS, factor_targets
from drpm.data.mpi3d import factors_of as factors_of
from drpm.data.mpi3d import index_of as index_of
from drpm.data.types import DataError, Dataset, Device, Split

OBJECT_COLORS = {
    "white": (0.95, 0.95, 0.95),
    "green": (0.13, 0.68, 0.15),
    "red": (0.98, 0.06, 0.06),
    "blue": (0.17, 0.46, 0.95),
    "brown": (0.47, 0.24, 0.11),
    "olive": (0.58, 0.58, 0.16),
}
ARC_COLORS = {
    "purple": (0.40, 0.28, 0.62),
    "sea green": (0.27, 0.45, 0.41),
    "salmon": (0.56, 0.33, 0.34),
}
SIZES = {"small": 0.21, "large": 0.34}
HEIGHTS = {"top": 54.0, "center": 38.0, "bottom": 22.0}  # degrees above the ground

# The camera looks at a lower point from greater heights, so that the arm moves up in the image.
DISTANCE, FOCAL_LENGTH = 6.0, 3.3
TARGET_HEIGHTS = (0.60, 0.70, 0.90)

COLUMN_HEIGHT, COLUMN_RADIUS = 0.8, 0.15
BASE_RADII = (0.17, 0.34)  # a ring
ARC_RADII = (2.06, 2.5)
ARM_LENGTH, ARM_RADIUS = 0.78, 0.042
JOINT_RADIUS = 0.16
# The arm is mounted next to its joint, so turning the base moves it even if it points upwards.
SHOULDER_OFFSET = 0.2
# At a right angle to the arm, so that its rise is visible from every direction.
LEVER_LENGTH, LEVER_RADIUS = 0.3, 0.065
BOLT_RADIUS = 0.075

LIGHT = (-0.45, -0.55, 0.70)
AMBIENT = 0.42

WINDOW = 0.375  # the side of the window around an object, as a fraction of the picture's
SUPERSAMPLING = 4  # along each side of a pixel, for the cached pictures
EDGE_SOFTNESS = 0.4  # the depth in pixels over which two faces of a solid blend
MIN_SLOPE = 1e-4  # the smallest divisor, for faces seen edge-on and lines seen end-on


class Solid(NamedTuple):
    """A convex solid around the origin of its frame."""

    planes: Tensor  # (F, 4): the outward unit normal of each face and its distance from the origin
    edges: Tensor  # (E, 2): the two faces that meet in each edge
    half_height: float  # along the third axis


def prism(sides: int, half_height: float, *, apex: bool = False) -> Solid:
    """An upright prism whose base has circumradius 1, or the pyramid on that base (``apex``)."""
    inradius, side = math.cos(math.pi / sides), torch.arange(sides)
    angles = (side + 0.5) * (2 * math.pi / sides)
    lean = inradius / (2 * half_height) if apex else 0.0  # of a side of a pyramid, inwards
    offset = lean * half_height if apex else inradius
    around = torch.tensor([lean, offset]).expand(sides, 2)
    around = torch.cat([angles.cos()[:, None], angles.sin()[:, None], around], dim=1)
    ends = torch.tensor([[0.0, 0.0, -1.0, half_height], [0.0, 0.0, 1.0, half_height]])
    ends = ends[: 1 if apex else 2]
    others = [side.roll(-1), *(torch.full_like(side, sides + end) for end in range(len(ends)))]
    edges = [torch.stack([side, other], dim=1) for other in others]
    return Solid(torch.cat([around / math.hypot(1.0, lean), ends]), torch.cat(edges), half_height)


ROUND = 20  # sides that look round
# Solid (None for a ball) and radius. No two outlines agree from every side.
SHAPES: dict[str, tuple[Solid | None, float]] = {
    "cone": (prism(ROUND, 1.4, apex=True), 0.8),
    "cube": (prism(4, math.sqrt(0.5)), 1.0),
    "cylinder": (prism(ROUND, 1.6), 0.58),
    "hexagonal": (prism(6, 0.45), 1.08),
    "pyramid": (prism(4, 0.6, apex=True), 1.25),
    "sphere": (None, 0.9),
}


def constants(values: Iterable[float | Sequence[float]], device: torch.device) -> Tensor:
    """Constants of the scene as a float32 tensor."""
    return torch.tensor(list(values), dtype=torch.float32, device=device)


class Camera:
    """A view of the scene for each image, from the numbers of the camera heights, (N,).

    The ``axes`` (N, 3, 3) are right, up and towards the viewer, one per row, in which ``light``
    (N, 3) is the direction to the light; ``position`` (N, 3) is the viewpoint.
    """

    def __init__(self, heights: Tensor, image_size: int) -> None:
        self.image_size, device = image_size, heights.device
        angle = constants(map(math.radians, HEIGHTS.values()), device)[heights]
        sine, cosine, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
        rows = (zero + 1, zero, zero), (zero, sine, cosine), (zero, -cosine, sine)
        self.axes = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
        self.position = DISTANCE * self.axes[:, 2]
        self.position[:, 2] += constants(TARGET_HEIGHTS, device)[heights]
        self.light = self.axes @ constants(LIGHT, device) / math.hypot(*LIGHT)

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where points (N, K, 3) appear, (N, K, 2) in pixels, and the pixels per unit there."""
        seen = (points - self.position[:, None]) @ self.axes.mT
        scale = (0.5 * FOCAL_LENGTH * self.image_size) / -seen[..., 2:]
        return self.image_size / 2 + seen[..., :2] * scale, scale[..., 0]


def joint_frames(horizontal: Tensor, vertical: Tensor) -> Tensor:
    """The frame at the end of each arm, (N, 3, 3): columns are its side, back, and direction.

    Angles are the midpoints of 40 equal parts of half a turn.
    """
    turn, rise = ((x.float() + 0.5) * (math.pi / 40) for x in (horizontal, vertical))
    zero = torch.zeros_like(turn)
    side = torch.stack([-turn.sin(), turn.cos(), zero], dim=1)
    direction = torch.stack([rise.cos() * turn.cos(), rise.cos() * turn.sin(), rise.sin()], dim=1)
    return torch.stack([side, torch.linalg.cross(direction, side), direction], dim=2)


def coverage(distance: Tensor) -> Tensor:
    """Pixel coverage from a signed distance, in [0, 1]."""
    return (0.5 - distance).clamp_(0.0, 1.0)


def capsule(x: Tensor, y: Tensor, ends: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to a line with round ends, and the offset from its axis over its radius.

    The ends are (N, 2, 2), end and then coordinate, and their radii (N, 2).
    """
    start, along = ends[:, 0], ends[:, 1] - ends[:, 0]
    length = along.norm(dim=1, keepdim=True).clamp_min(MIN_SLOPE)
    unit = along / length
    rate = unit / length
    dx, dy = x - start[:, :1], y - start[:, 1:]
    position = (dx * rate[:, :1] + dy * rate[:, 1:]).clamp_(0.0, 1.0)
    radius = radii[:, :1] + position * (radii[:, 1:] - radii[:, :1])
    across = (dy * unit[:, :1] - dx * unit[:, 1:]).div_(radius).clamp_(-1.0, 1.0)
    gap = torch.hypot(dx.sub_(position * along[:, :1]), dy.sub_(position * along[:, 1:]))
    return gap.sub_(radius), across


def ball(x: Tensor, y: Tensor, radius: Tensor, light: Tensor) -> tuple[Tensor, Tensor]:
    """A ball around the origin: signed distance, and cosine between normal and light, (N, P)."""
    u, v = x / radius, y / radius
    depth = (1 - u * u - v * v).clamp_min_(0.0).sqrt_()
    return torch.hypot(x, y) - radius, u * light[:, :1] + v * light[:, 1:2] + depth * light[:, 2:]


def convex_solid(
    solid: Solid, x: Tensor, y: Tensor, rotation: Tensor, radius: Tensor, light: Tensor
) -> tuple[Tensor, Tensor]:
    """A convex solid around the origin: signed distance, and cosine between normal and light.

    The outline consists of the edges between a visible and a hidden face. A pixel shows the front
    face whose plane is deepest there. The rotation (N, 3, 3) maps the frame of the solid, in units
    of the radius, to the viewer's.
    """
    planes, edges = solid.planes.to(rotation), solid.edges.to(x.device)
    normals, offsets = planes[:, :3] @ rotation.mT, planes[:, 3] * radius
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=1)
    # The excess n x + m y - h of a pixel over each plane, as coefficients (n, m, -h).
    excess = torch.stack([normals[..., 0], normals[..., 1], -offsets], dim=2)
    facing = normals[..., 2:]

    # Eliminate the depth from the equations of both planes to get the projected edge.
    one, other = edges.unbind(dim=1)
    lines = facing[:, one] * excess[:, other] - facing[:, other] * excess[:, one]
    lines *= torch.where(facing[:, one] > 0, 1.0, -1.0)
    slopes = torch.hypot(lines[..., 0], lines[..., 1])[..., None]
    on_outline = ((facing[:, one] > 0) != (facing[:, other] > 0)) & (slopes > MIN_SLOPE)
    beyond = lines.new_tensor([0.0, 0.0, -1e6])  # where there is no edge or face
    distance = (torch.where(on_outline, lines / slopes, beyond) @ pixels).amax(dim=1)

    # Blend faces softly, so that the edges between them are smooth.
    depths = torch.where(facing > MIN_SLOPE, -excess / facing, -beyond) @ pixels
    weights = torch.softmax(depths.mul_(-1 / EDGE_SOFTNESS), dim=1)
    lit = normals @ light[..., None]
    return distance, (lit.mT @ weights)[:, 0]


def pixel_grid(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Columns and rows of the pixels' centers, (size * size,) each; rows count upwards."""
    centers = torch.arange(size, dtype=torch.float32, device=device) + 0.5
    rows, columns = torch.meshgrid(size - centers, centers, indexing="ij")
    return columns.reshape(-1), rows.reshape(-1)


@lru_cache(maxsize=8)
def backgrounds(image_size: int, device: torch.device) -> Tensor:
    """Ground, arc and column for each camera height and arc color, (9, 3, size, size)."""
    size = image_size * SUPERSAMPLING
    camera = Camera(torch.arange(len(HEIGHTS), device=device), size)
    x, y = pixel_grid(size, device)

    # The point of the ground behind every pixel: heights, colors and channels, then pixels.
    half = size / 2
    depth = torch.full_like(x, -FOCAL_LENGTH)
    rays = torch.stack([(x - half) / half, (y - half) / half, depth], dim=1) @ camera.axes
    ground = camera.position[:, None] - rays * (camera.position[:, 2:] / rays[..., 2])[..., None]
    ground = ground[:, None, None]
    sideways, behind = ground[..., 0], ground[..., 1] > 0
    radius = ground[..., :2].norm(dim=-1)

    # A lamp above the arm: the ground darkens slowly away from it.
    picture = 0.2 * (1.06 - 0.016 * radius.clamp_max(6.0))
    colors = constants(ARC_COLORS.values(), device)[:, :, None]
    arc = behind & (radius > ARC_RADII[0]) & (radius < ARC_RADII[1])
    fade = (1.0 - 0.25 * sideways.abs() / ARC_RADII[1]).clamp_min(0.6)
    picture = torch.where(arc, colors * fade, picture)
    picture = picture * (1 - 0.35 * torch.sigmoid((BASE_RADII[1] + 0.12 - radius) * 18))
    ring = (radius > BASE_RADII[0]) & (radius < BASE_RADII[1])
    picture = torch.where(ring, 0.66 - 0.45 * sideways, picture)

    heads = constants([(0.0, 0.0, 0.08), (0.0, 0.0, COLUMN_HEIGHT)], device)
    ends, scale = camera.project(heads.expand(len(HEIGHTS), 2, 3))
    distance, across = capsule(x, y, ends, COLUMN_RADIUS * scale)
    column = (0.40 + 0.2 * (across - 0.2))[:, None, None]
    picture = torch.lerp(picture, column, coverage(distance)[:, None, None])
    return torch.nn.functional.avg_pool2d(picture.reshape(-1, 3, size, size), SUPERSAMPLING)


def draw_arm(camera: Camera, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Bolt, lever, joint and arm: their coverage of each pixel, and gray times coverage, (N, P)."""
    x, y = pixel_grid(camera.image_size, frames.device)
    side, back, direction = frames.unbind(dim=2)
    bolt = sum(BASE_RADII) / 2 * side
    middle = side.new_tensor([0.0, 0.0, COLUMN_HEIGHT]).expand_as(side)
    shoulder = middle + SHOULDER_OFFSET * side
    lever, end = shoulder + LEVER_LENGTH * back, shoulder + ARM_LENGTH * direction
    at, scale = camera.project(torch.stack([bolt, middle, shoulder, end, shoulder, lever], dim=1))

    def rod(start: int, radius: float, contrast: float, gray: float) -> tuple[Tensor, Tensor]:
        ends = slice(start, start + 2)
        distance, across = capsule(x, y, at[:, ends], radius * scale[:, ends])
        return distance, across.mul_(contrast).add_(gray)

    bolted = torch.hypot(x - at[:, 0, :1], y - at[:, 0, 1:]) - BOLT_RADIUS * scale[:, :1]
    alpha = coverage(bolted)
    gray = alpha * 0.12
    radius = JOINT_RADIUS * scale[:, 1:2]
    joint, lit = ball(x - at[:, 1, :1], y - at[:, 1, 1:], radius, camera.light)
    for distance, layer in (
        rod(4, LEVER_RADIUS, 0.1, 0.7),
        rod(1, 0.55 * JOINT_RADIUS, 0.15, 0.5),
        (joint, lit.mul_(0.35).add_(0.45)),
        rod(2, ARM_RADIUS, 0.15, 0.75),
    ):
        covered = coverage(distance)
        alpha = torch.lerp(alpha, torch.ones_like(alpha), covered)
        gray = torch.lerp(gray, layer, covered)
    return alpha, gray


def draw_object(camera: Camera, frames: Tensor, shape: int, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Objects of one shape: their coverage of each pixel, and brightness times coverage, (N, P)."""
    count, image_size, device = len(frames), camera.image_size, frames.device
    solid, width = tuple(SHAPES.values())[shape]
    radius = width * constants(SIZES.values(), device)[sizes]
    # The arm holds solids at the center of the base, balls at the surface.
    reach = ARM_LENGTH + (1.0 if solid is None else solid.half_height) * radius
    center = SHOULDER_OFFSET * frames[..., 0] + reach[:, None] * frames[..., 2]
    center[:, 2] += COLUMN_HEIGHT
    at, scale = camera.project(center[:, None])
    radius = radius[:, None] * scale

    # Keep the window inside the picture.
    side = min(image_size, 2 * math.ceil(image_size * WINDOW / 2))
    offset = torch.arange(side, dtype=torch.float32, device=device)
    corner = (at[:, 0] - side / 2).round_().clamp_(0, image_size - side)
    columns, rows = corner[:, :1] + offset, corner[:, 1:] + offset
    x = (columns + 0.5 - at[:, 0, :1])[:, None, :].expand(-1, side, -1).reshape(count, -1)
    y = (rows + 0.5 - at[:, 0, 1:])[:, :, None].expand(-1, -1, side).reshape(count, -1)

    if solid is None:
        distance, lit = ball(x, y, radius, camera.light)
    else:
        distance, lit = convex_solid(solid, x, y, camera.axes @ frames, radius, camera.light)
    alpha = coverage(distance)
    bright = lit.clamp_min_(0.0).mul_(1.08 - AMBIENT).add_(AMBIENT).mul_(alpha)

    index = (image_size - 1 - rows)[:, :, None] * image_size + columns[:, None, :]
    index = index.reshape(count, -1).long()
    empty = alpha.new_zeros(count, image_size * image_size)
    return empty.scatter(1, index, alpha), empty.scatter(1, index, bright)


def draw(factors: Tensor, shape: int, image_size: int) -> Tensor:
    """Images (N, 3, size, size) of factors (N, 7) whose objects all have one shape."""
    colors, _, sizes, heights, arcs, horizontal, vertical = factors.unbind(dim=1)
    device = factors.device
    camera = Camera(heights, image_size)
    frames = joint_frames(horizontal, vertical)
    arm, gray = draw_arm(camera, frames)
    thing, bright = draw_object(camera, frames, shape, sizes)

    # The object is in front of an arm that points at the viewer, else behind it.
    near = (frames[..., 2] * camera.axes[:, 2]).sum(dim=1, keepdim=True) > 0
    clear = (1 - arm) * (1 - thing)
    bright = torch.where(near, bright, bright * (1 - arm))
    gray = torch.where(near, gray * (1 - thing), gray)

    color = constants(OBJECT_COLORS.values(), device)[colors]
    picture = backgrounds(image_size, device)[heights * len(ARC_COLORS) + arcs]
    picture = picture.flatten(2).mul_(clear[:, None]).add_(gray[:, None])
    picture.addcmul_(color[:, :, None], bright[:, None]).clamp_(0.0, 1.0)
    return picture.reshape(-1, 3, image_size, image_size)


@torch.no_grad()
def render(factors: Tensor, *, image_size: int = 64) -> Tensor:
    """Draw one image for each factor vector, on the device of the factors.

    Args:
        factors: (N, 7) integers, in the order of ``FACTOR_NAMES``, each from 0 to its size minus 1.
        image_size: The side of the images in pixels.

    Returns:
        The images, (N, 3, image_size, image_size), float32 in [0, 1].

    Example:
        >>> import torch
        >>> red_cube = torch.tensor([[2, 1, 1, 0, 0, 20, 10]])
        >>> render(red_cube).shape
        torch.Size([1, 3, 64, 64])
    """
    mpi3d.check_factors(factors)
    if image_size < 16:
        raise DataError(f"image_size must be at least 16, but got {image_size}.")
    factors, device = factors.long(), factors.device
    size = (len(factors), 3, image_size, image_size)
    images = torch.empty(size, dtype=torch.float32, device=device)
    # On a CPU, a chunk should fit into the cache.
    chunk = 64 if device.type == "cpu" else 2048
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the operations on one chunk take microseconds each
    try:
        # Half precision would shift the edges.
        with torch.autocast(device.type, enabled=False):
            for shape in range(len(SHAPES)):
                part_of = (factors[:, 1] == shape).nonzero()[:, 0]
                for part in part_of.split(chunk) if len(part_of) else ():
                    images[part] = draw(factors[part], shape, image_size)
    finally:
        torch.set_num_threads(threads)
    return images


def sample_factors(n: int, generator: torch.Generator | None = None) -> Tensor:
    """Uniform factor vectors (n, 7), on the device of the generator."""
    device = torch.device("cpu") if generator is None else generator.device
    index = torch.randint(mpi3d.NUM_IMAGES, (n,), generator=generator, device=device)
    return factors_of(index)


def load(
    *, device: Device = "cpu", seed: int = 0, num_train: int = 10_000, num_test: int = 5_000
) -> Dataset:
    """Images (3, 64, 64) of factors sampled without replacement; the targets are the factors.

    The factors depend on the seed and the numbers of images, not on the device.
    """
    drawn = mpi3d.draw_indices(seed, num_train, num_test)
    vectors = [factors_of(indices).to(device) for indices in drawn]
    train, test = (Split(render(each), factor_targets(each)) for each in vectors)
    return Dataset("arm", train, test, classes=FACTORS)
