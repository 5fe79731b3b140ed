r"""Drawing with signed distances, in batches.

A pixel at signed distance :math:`d` from an outline, in pixels and negative inside, is covered
to the amount :math:`\mathrm{clamp}(1/2 - d, 0, 1)`, which makes edges smooth. Every function draws
one figure per image: x and y are the columns and rows of the pixels, (P,) or (N, P); radii are in
pixels, (N, 1); light is the direction to the light in the viewer's frame, (N, 3), of length 1.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EDGE_SOFTNESS = 0.4  # the depth in pixels over which two faces of a solid blend
FAR = 1e6  # stands for "no edge or face here"
MIN_SLOPE = 1e-4  # faces seen edge-on and lines seen end-on are not divided by less


@dataclass(frozen=True)
class Solid:
    """A convex solid around the origin of its frame."""

    planes: Tensor  # (F, 4): the outward unit normal of each face and its distance from the origin
    edges: Tensor  # (E, 2): the two faces that meet in each edge
    half_height: float  # along the third axis


def coverage(distance: Tensor) -> Tensor:
    """How much of a pixel lies inside an outline at that signed distance, in [0, 1]."""
    return (0.5 - distance).clamp_(0.0, 1.0)


def disc(x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Signed distance to a disc around the origin."""
    return torch.hypot(x, y) - radius


def capsule(x: Tensor, y: Tensor, ends: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to a line with round ends, and the offset from its axis over its radius.

    The radius changes linearly between the ends, as that of a rod in perspective; the distance is
    exact only for a slight taper. Both results are (N, P).

    Args:
        x: (P,).
        y: (P,).
        ends: The two end points, (N, 2, 2): end, then coordinate.
        radii: The radius at each end, (N, 2).
    """
    start, along = ends[:, 0], ends[:, 1] - ends[:, 0]
    # A line seen end-on is a point: every pixel is then nearest to its start.
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
    return disc(x, y, radius), u * light[:, :1] + v * light[:, 1:2] + depth * light[:, 2:]


def convex_solid(
    solid: Solid, x: Tensor, y: Tensor, rotation: Tensor, radius: Tensor, light: Tensor
) -> tuple[Tensor, Tensor]:
    """A convex solid: signed distance, and cosine between normal and light, (N, P).

    The outline consists of the edges between a visible and a hidden face, so the signed distance
    is the largest of the distances to the lines through those. A pixel shows the face whose plane
    lies deepest there, of those turned towards the viewer.

    Args:
        solid: The solid, the same in every image.
        x: (N, P), measured from the centre of the solid.
        y: (N, P), likewise.
        rotation: From the frame of the solid to right, up, and towards the viewer, (N, 3, 3).
        radius: The unit of the solid's frame in pixels, (N, 1).
        light: (N, 3).
    """
    planes, edges = solid.planes.to(rotation), solid.edges.to(x.device)
    normals, offsets = planes[:, :3] @ rotation.mT, planes[:, 3] * radius
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=1)
    # The excess n x + m y - h of a pixel over each plane, as coefficients (n, m, -h).
    excess = torch.stack([normals[..., 0], normals[..., 1], -offsets], dim=2)
    facing = normals[..., 2:]

    # Taking the depth out of the equations of both planes leaves that of the projected edge.
    one, other = edges.unbind(dim=1)
    lines = facing[:, one] * excess[:, other] - facing[:, other] * excess[:, one]
    lines *= torch.where(facing[:, one] > 0, 1.0, -1.0)
    slopes = torch.hypot(lines[..., 0], lines[..., 1])[..., None]
    on_outline = ((facing[:, one] > 0) != (facing[:, other] > 0)) & (slopes > MIN_SLOPE)
    beyond = lines.new_tensor([0.0, 0.0, -FAR])
    distance = (torch.where(on_outline, lines / slopes, beyond) @ pixels).amax(dim=1)

    # Which face is seen is decided softly, so that the edges between faces are smooth as well.
    depths = torch.where(facing > MIN_SLOPE, -excess / facing, -beyond) @ pixels
    weights = torch.softmax(depths.mul_(-1 / EDGE_SOFTNESS), dim=1)
    lit = normals @ light[..., None]
    return distance, (lit.mT @ weights)[:, 0]


def prism(sides: int, half_height: float, *, apex: bool = False) -> Solid:
    """An upright prism whose base has circumradius 1, or the pyramid on that base.

    Args:
        sides: Of the base; many make a cylinder or a cone.
        half_height: The base lies at minus this height, the top or the apex at plus this height.
        apex: Whether the sides meet in a point.
    """
    angles = (torch.arange(sides) + 0.5) * (2 * math.pi / sides)
    inradius = math.cos(math.pi / sides)
    # A side of a pyramid leans inwards; its plane passes through the apex.
    lean = inradius / (2 * half_height) if apex else 0.0
    offset = lean * half_height if apex else inradius
    flat = torch.stack([angles.cos(), angles.sin()], dim=1)
    rest = torch.tensor([lean, offset]).expand(sides, 2)
    planes = [torch.cat([flat, rest], dim=1) / math.hypot(1.0, lean)]
    planes.append(torch.tensor([[0.0, 0.0, -1.0, half_height]]))
    side = torch.arange(sides)
    edges = [torch.stack([side, side.roll(-1)], dim=1)]
    edges.append(torch.stack([side, torch.full_like(side, sides)], dim=1))
    if not apex:
        planes.append(torch.tensor([[0.0, 0.0, 1.0, half_height]]))
        edges.append(torch.stack([side, torch.full_like(side, sides + 1)], dim=1))
    return Solid(torch.cat(planes), torch.cat(edges), half_height)
