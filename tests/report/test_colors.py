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
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
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
