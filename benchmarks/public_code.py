"""Figures of the authors' public code for the same task, measured separately.

One relaxed partition with gradients, K = 10. They are constants: that code is not a dependency,
and its figures hold for the hardware named beside them, not for the machine at hand.
"""

from typing import NamedTuple


class PublicFigure(NamedTuple):
    """Seconds and peak bytes at one n; None where no figure was taken."""

    num_elements: int
    seconds: float
    peak_bytes: float | None


OPERATION = "rsample_grad"
NUM_GROUPS = 10
HARDWARE = {"cpu": "2 CPU cores", "cuda": "one H200"}
FIGURES = {
    "cpu": (
        PublicFigure(64, 65e-3, None),
        PublicFigure(256, 1.156, None),
        PublicFigure(512, 7.218, None),
    ),
    "cuda": (
        PublicFigure(64, 25.9e-3, 70e6),
        PublicFigure(256, 23.9e-3, 208e6),
        PublicFigure(512, 28.4e-3, 1.2e9),
        PublicFigure(1024, 102e-3, 8.8e9),
        PublicFigure(2048, 673e-3, 69e9),
    ),
}
