"""Three centers share points equally: python examples/affinities.py.

Every center has its own affinity for every point: the log-odds that the point belongs to it, by
distance. Top, points go to the nearest center. Bottom, an AffinityPartition in which every subset
has 20 points: the centers choose one after another, and points between two centers change sides.
The size of a point is the probability of its color.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drpm import AffinityPartition

CENTERS = torch.tensor([[-1.2, -0.6], [1.2, -0.6], [0.0, 1.0]])


def make_points() -> Tensor:
    """60 points, half of them near the first center."""
    generator = torch.Generator().manual_seed(0)
    near = CENTERS[[0] * 30 + [1] * 10 + [2] * 20]
    return near + 0.6 * torch.randn(60, 2, generator=generator)


def draw() -> Figure:
    points = make_points()
    nearest = (-2 * torch.cdist(CENTERS, points).square()).softmax(0)
    law = AffinityPartition(nearest.logit(eps=1e-6), torch.zeros(3), minimum=20, maximum=20)
    shares = law.marginals(num_samples=2000, generator=torch.Generator().manual_seed(0))

    figure, axes = plt.subplots(2, 1, figsize=(5, 6.4), sharex=True, sharey=True)
    found = [("Nearest center", nearest, nearest), ("20 points each", law.greedy, shares)]
    for axis, (title, partition, probs) in zip(axes, found, strict=True):
        subsets = partition.argmax(0)
        certainty = probs.gather(0, subsets[None])[0]
        colors = [f"C{subset}" for subset in subsets]
        axis.scatter(*points.T, s=8 + 42 * certainty, c=colors, alpha=0.8)
        axis.scatter(*CENTERS.T, s=140, c=["C0", "C1", "C2"], marker="X", edgecolor="k")
        sizes = ", ".join(str(int(size)) for size in subsets.bincount(minlength=3))
        axis.set(title=f"{title}: {sizes}", xticks=[], yticks=[])
    return figure


if __name__ == "__main__":
    draw().savefig("affinities.png")
