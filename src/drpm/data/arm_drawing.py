"""How the scene of the data set `arm` is drawn.

Ground, arc and column do not move: their nine pictures (three camera heights, three arc colours)
are cached, and what moves is drawn over them.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from drpm.data import arm_scene as scene
from drpm.data import sdf
from drpm.data.arm_scene import Camera, constants

# The side of the window around an object, as a fraction of the picture's. No object reaches more
# than 11 of 64 pixels from its centre.
WINDOW = 0.375
SUPERSAMPLING = 4  # along each side of a pixel, for the cached pictures


def pixel_grid(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Columns and rows of the pixels' centres, (size * size,) each; rows count upwards here."""
    centres = torch.arange(size, dtype=torch.float32, device=device) + 0.5
    rows, columns = torch.meshgrid(size - centres, centres, indexing="ij")
    return columns.reshape(-1), rows.reshape(-1)


@lru_cache(maxsize=8)
def backgrounds(image_size: int, device: torch.device) -> Tensor:
    """Ground, arc and column for each camera height and arc colour, (9, 3, size, size)."""
    size = image_size * SUPERSAMPLING
    heights = torch.arange(len(scene.HEIGHTS), device=device)
    camera = scene.camera_at(heights, size)
    x, y = pixel_grid(size, device)

    # The point of the ground behind every pixel.
    half = size / 2
    rays = torch.stack(
        [(x - half) / half, (y - half) / half, torch.full_like(x, -scene.FOCAL_LENGTH)], dim=1
    )
    rays = rays @ camera.axes
    ground = camera.position[:, None] - rays * (camera.position[:, 2:] / rays[..., 2])[..., None]
    radius = ground[..., :2].norm(dim=2)
    behind = ground[..., 1] > 0

    # A lamp above the arm: the ground darkens slowly away from it.
    picture = (scene.GROUND * (1.06 - 0.016 * radius.clamp_max(6.0)))[:, None, None]
    colours = constants(scene.ARC_COLOURS.values(), device)
    arc = behind & (radius > scene.ARC_RADII[0]) & (radius < scene.ARC_RADII[1])
    fade = 1.0 - 0.25 * ground[..., 0].abs() / scene.ARC_RADII[1]
    picture = torch.where(
        arc[:, None, None], colours[:, :, None] * fade[:, None, None].clamp_min(0.6), picture
    )
    shadow = 1 - 0.35 * torch.sigmoid((scene.BASE_RADII[1] + 0.12 - radius) * 18)
    picture = picture * shadow[:, None, None]
    ring = (radius > scene.BASE_RADII[0]) & (radius < scene.BASE_RADII[1])
    ring_grey = 0.66 - 0.45 * ground[..., 0]
    picture = torch.where(ring[:, None, None], ring_grey[:, None, None], picture)

    heads = constants([(0.0, 0.0, 0.08), (0.0, 0.0, scene.COLUMN_HEIGHT)], device)
    ends, scale = camera.project(heads.expand(len(scene.HEIGHTS), 2, 3))
    distance, across = sdf.capsule(x, y, ends, scene.COLUMN_RADIUS * scale)
    column = 0.40 + 0.2 * (across - 0.2)
    covered = sdf.coverage(distance)[:, None, None]
    picture = torch.lerp(picture, column[:, None, None], covered)

    picture = picture.reshape(-1, 3, size, size)
    return torch.nn.functional.avg_pool2d(picture, SUPERSAMPLING)


def draw_arm(camera: Camera, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Bolt, lever, joint and arm: their coverage of each pixel, and grey times coverage, (N, P)."""
    x, y = pixel_grid(camera.image_size, frames.device)
    side, back, direction = frames.unbind(dim=2)
    bolt = sum(scene.BASE_RADII) / 2 * side
    middle = side.new_tensor([0.0, 0.0, scene.COLUMN_HEIGHT]).expand_as(side)
    shoulder = middle + scene.SHOULDER_OFFSET * side
    lever, end = shoulder + scene.LEVER_LENGTH * back, shoulder + scene.ARM_LENGTH * direction
    at, scale = camera.project(torch.stack([bolt, middle, shoulder, end, shoulder, lever], dim=1))

    alpha = sdf.coverage(
        sdf.disc(x - at[:, 0, :1], y - at[:, 0, 1:], scene.BOLT_RADIUS * scale[:, :1])
    )
    grey = alpha * 0.12
    bracket, across = sdf.capsule(x, y, at[:, 4:], scene.LEVER_RADIUS * scale[:, 4:])
    alpha, grey = _add(alpha, grey, bracket, across.mul_(0.1).add_(0.7))
    axle, across = sdf.capsule(x, y, at[:, 1:3], 0.55 * scene.JOINT_RADIUS * scale[:, 1:3])
    alpha, grey = _add(alpha, grey, axle, across.mul_(0.15).add_(0.5))
    joint, lit = sdf.ball(
        x - at[:, 1, :1],
        y - at[:, 1, 1:],
        scene.JOINT_RADIUS * scale[:, 1:2],
        scene.light_from(camera),
    )
    alpha, grey = _add(alpha, grey, joint, lit.mul_(0.35).add_(0.45))
    rod, across = sdf.capsule(x, y, at[:, 2:4], scene.ARM_RADIUS * scale[:, 2:4])
    return _add(alpha, grey, rod, across.mul_(0.15).add_(0.75))


def _add(alpha: Tensor, grey: Tensor, distance: Tensor, layer: Tensor) -> tuple[Tensor, Tensor]:
    """Lay one more grey figure over a layer of them."""
    covered = sdf.coverage(distance)
    return torch.lerp(alpha, torch.ones_like(alpha), covered), torch.lerp(grey, layer, covered)


def draw_object(camera: Camera, frames: Tensor, shape: int, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Objects of one shape: their coverage of each pixel, and brightness times coverage, (N, P)."""
    count, image_size, device = len(frames), camera.image_size, frames.device
    solid = tuple(scene.SHAPES.values())[shape]
    radius = scene.RADII[shape] * constants(scene.SIZES.values(), device)[sizes]
    # The arm holds a solid by the middle of its base, a ball by its surface.
    reach = scene.ARM_LENGTH + (1.0 if solid is None else solid.half_height) * radius
    centre = scene.SHOULDER_OFFSET * frames[..., 0] + reach[:, None] * frames[..., 2]
    centre[:, 2] += scene.COLUMN_HEIGHT
    at, scale = camera.project(centre[:, None])
    radius = radius[:, None] * scale

    # The window is moved inwards where it would leave the picture.
    side = min(image_size, 2 * math.ceil(image_size * WINDOW / 2))
    offset = torch.arange(side, dtype=torch.float32, device=device)
    corner = (at[:, 0] - side / 2).round_().clamp_(0, image_size - side)
    columns = corner[:, :1] + offset
    rows = corner[:, 1:] + offset
    x = (columns + 0.5 - at[:, 0, :1])[:, None, :].expand(-1, side, -1).reshape(count, -1)
    y = (rows + 0.5 - at[:, 0, 1:])[:, :, None].expand(-1, -1, side).reshape(count, -1)

    light = scene.light_from(camera)
    if solid is None:
        distance, lit = sdf.ball(x, y, radius, light)
    else:
        distance, lit = sdf.convex_solid(solid, x, y, camera.axes @ frames, radius, light)
    alpha = sdf.coverage(distance)
    bright = lit.clamp_min_(0.0).mul_(1.08 - scene.AMBIENT).add_(scene.AMBIENT).mul_(alpha)

    # Rows of the picture count downwards.
    index = (image_size - 1 - rows)[:, :, None] * image_size + columns[:, None, :]
    index = index.reshape(count, -1).long()
    empty = alpha.new_zeros(count, image_size * image_size)
    return empty.scatter(1, index, alpha), empty.scatter(1, index, bright)


def draw(factors: Tensor, shape: int, image_size: int) -> Tensor:
    """Images (N, 3, size, size) of factors (N, 7) whose objects all have one shape."""
    colours, _, sizes, heights, arcs, horizontal, vertical = factors.unbind(dim=1)
    device = factors.device
    camera = scene.camera_at(heights, image_size)
    frames = scene.joint_frames(horizontal, vertical)
    arm, grey = draw_arm(camera, frames)
    thing, bright = draw_object(camera, frames, shape, sizes)

    # The object hides an arm that points at the viewer; one that points away hides the object.
    near = (frames[..., 2] * camera.axes[:, 2]).sum(dim=1, keepdim=True) > 0
    clear = (1 - arm) * (1 - thing)
    bright = torch.where(near, bright, bright * (1 - arm))
    grey = torch.where(near, grey * (1 - thing), grey)

    colour = constants(scene.OBJECT_COLOURS.values(), device)[colours]
    picture = backgrounds(image_size, device)[heights * len(scene.ARC_COLOURS) + arcs]
    picture = picture.flatten(2).mul_(clear[:, None]).add_(grey[:, None])
    picture.addcmul_(colour[:, :, None], bright[:, None]).clamp_(0.0, 1.0)
    return picture.reshape(-1, 3, image_size, image_size)
