"""Colors of figures and pages differ for color-blind readers too."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_params_from_file

from drpm.report import plots

ROOT = Path(__file__).parents[2]
CSS = (Path(plots.__file__).parent / "templates" / "explore.css").read_text("utf-8")
SUBSETS = re.findall(r"--subset-\d: (#\w{6})", CSS)  # four of the light page, four of the dark one
CYCLE = rc_params_from_file(ROOT / "docs" / "matplotlibrc", use_default_template=False)
PALETTES = {
    "report": plots.COLORS[:10],
    "documents": CYCLE["axes.prop_cycle"].by_key()["color"],
    "explorer, light": SUBSETS[:4],
    "explorer, dark": SUBSETS[4:],
}

# What remains of linear RGB: Machado, Oliveira and Fernandes, "A physiologically-based model for
# simulation of color vision deficiency", 2009.
VISION = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def seen(color: str, vision: Sequence[Sequence[float]]) -> np.ndarray:
    """A color in CIELAB, as it is seen."""
    levels = np.array([int(part, 16) for part in re.findall("..", color.lstrip("#"))]) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", PALETTES)
def test_colors_can_be_told_apart(palette: str, vision: str) -> None:
    """A difference of 2 can just be seen; here it is at least 10 between any two."""
    colors = [seen(color, VISION[vision]) for color in PALETTES[palette]]
    assert len(colors) >= 4
    pairs = itertools.combinations(colors, 2)
    assert min(np.linalg.norm(one - other) for one, other in pairs) > 10
