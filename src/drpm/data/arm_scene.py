"""The scene of the data set `arm`.

The axes are right, away from the viewer, and up; the base of the arm stands at the origin. The unit
of length is about that from the ground to the upper joint.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drpm.data import sdf

OBJECT_COLOURS = {
    "white": (0.95, 0.95, 0.95),
    "green": (0.13, 0.68, 0.15),
    "red": (0.98, 0.06, 0.06),
    "blue": (0.17, 0.46, 0.95),
    "brown": (0.47, 0.24, 0.11),
    "olive": (0.58, 0.58, 0.16),
}
ARC_COLOURS = {
    "purple": (0.40, 0.28, 0.62),
    "sea green": (0.27, 0.45, 0.41),
    "salmon": (0.56, 0.33, 0.34),
}
ROUND = 20  # sides that look round
# In different proportions, so that no two outlines agree from every side. None is a ball.
SHAPES: dict[str, sdf.Solid | None] = {
    "cone": sdf.prism(ROUND, 1.4, apex=True),
    "cube": sdf.prism(4, math.sqrt(0.5)),
    "cylinder": sdf.prism(ROUND, 1.6),
    "hexagonal": sdf.prism(6, 0.45),
    "pyramid": sdf.prism(4, 0.6, apex=True),
    "sphere": None,
}
# Of each shape, so that all have about the same size.
RADII = (0.8, 1.0, 0.58, 1.08, 1.25, 0.9)
SIZES = {"small": 0.21, "large": 0.34}
HEIGHTS = {"top": 54.0, "center": 38.0, "bottom": 22.0}  # degrees above the ground

NUM_ANGLES = 40
ANGLE_STEP = math.pi / NUM_ANGLES

# The camera. The point it looks at sinks as it rises, so that the arm moves up in the picture.
DISTANCE = 6.0
FOCAL_LENGTH = 3.3
TARGET_HEIGHTS = (0.60, 0.70, 0.90)

GROUND = 0.2
COLUMN_HEIGHT = 0.8
COLUMN_RADIUS = 0.15
BASE_RADII = (0.17, 0.34)  # a ring
ARC_RADII = (2.06, 2.5)
ARM_LENGTH = 0.78
ARM_RADIUS = 0.042
JOINT_RADIUS = 0.16
# The arm hangs beside its joint: turning the base moves it even when it points upwards.
SHOULDER_OFFSET = 0.2
# At right angles to the arm: its rise is visible even where its end moves towards the viewer.
LEVER_LENGTH = 0.3
LEVER_RADIUS = 0.065
BOLT_RADIUS = 0.075

LIGHT = (-0.45, -0.55, 0.70)
AMBIENT = 0.42


def constants(values: Iterable[float | Sequence[float]], device: torch.device) -> Tensor:
    """Numbers of the scene in single precision, whatever the default is."""
    return torch.tensor(list(values), dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Camera:
    """A view of the scene for each image: right, up and towards the viewer, and the viewpoint."""

    axes: Tensor  # (N, 3, 3): one axis per row
    position: Tensor  # (N, 3)
    image_size: int

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where points (N, K, 3) appear, (N, K, 2) in pixels, and the pixels per unit there."""
        seen = (points - self.position[:, None]) @ self.axes.mT
        scale = (0.5 * FOCAL_LENGTH * self.image_size) / -seen[..., 2:]
        return self.image_size / 2 + seen[..., :2] * scale, scale[..., 0]


def camera_at(heights: Tensor, image_size: int) -> Camera:
    """The camera at each of the heights, given by number."""
    angle = constants(map(math.radians, HEIGHTS.values()), heights.device)[heights]
    sine, cosine, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
    right = torch.stack([zero + 1, zero, zero], dim=1)
    up = torch.stack([zero, sine, cosine], dim=1)
    towards = torch.stack([zero, -cosine, sine], dim=1)
    target = constants(TARGET_HEIGHTS, heights.device)[heights]
    position = DISTANCE * towards + torch.stack([zero, zero, target], dim=1)
    return Camera(torch.stack([right, up, towards], dim=1), position, image_size)


def joint_frames(horizontal: Tensor, vertical: Tensor) -> Tensor:
    """The frame at each arm's end, (N, 3, 3): columns are its side, its back, and its direction.

    The base turns by the horizontal angle, then the arm rises by the vertical one. Angles are the
    midpoints of 40 equal parts of half a turn: at its ends two settings would agree.
    """
    turn = (horizontal.float() + 0.5) * ANGLE_STEP
    rise = (vertical.float() + 0.5) * ANGLE_STEP
    zero = torch.zeros_like(turn)
    side = torch.stack([-turn.sin(), turn.cos(), zero], dim=1)
    direction = torch.stack([rise.cos() * turn.cos(), rise.cos() * turn.sin(), rise.sin()], dim=1)
    return torch.stack([side, torch.linalg.cross(direction, side), direction], dim=2)


def light_from(camera: Camera) -> Tensor:
    """The direction to the light as the camera sees it, (N, 3)."""
    light: Tensor = camera.axes @ constants(LIGHT, camera.axes.device)
    return light / math.hypot(*LIGHT)
