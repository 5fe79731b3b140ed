"""Which columns of wide rows are worth looking at."""

import torch
from torch import Tensor


def telling_columns(samples: Tensor, deviations: Tensor, most: int) -> Tensor:
    """The columns that set clusters apart from each other, cluster by cluster.

    Clusters take turns: each takes the column, of those left, in which its mean lies furthest above
    the mean of all others, in deviations of the data. So a picture of the columns has the clusters
    on its diagonal.

    Arguments:
        samples: (K, m, d), m rows of every cluster.
        deviations: (d,), how far the data spreads in every column.
        most: How many columns.

    Returns:
        Their indices, those of the first cluster first.

    Example:
        >>> means = torch.tensor([[0.0, 9, 0, 0], [0, 0, 1, 0], [0, 0, 0, 5]])
        >>> telling_columns(means[:, None], torch.ones(4), most=3)
        tensor([1, 2, 3])
    """
    means = samples.double().mean(1)
    clusters, columns = means.shape
    others = (means.sum(0) - means) / max(clusters - 1, 1)
    # Where the data does not spread at all, nothing can be told from what is generated.
    spread = deviations.double()
    distance = torch.where(spread > 0, (means - others) / spread, 0.0)
    wishes = [iter(row) for row in distance.argsort(dim=-1, descending=True, stable=True).tolist()]
    chosen: list[list[int]] = [[] for _ in range(clusters)]
    taken: set[int] = set()
    while len(taken) < min(most, columns):
        own, wanted = chosen[len(taken) % clusters], wishes[len(taken) % clusters]
        own.append(next(column for column in wanted if column not in taken))
        taken.add(own[-1])
    return torch.tensor([column for own in chosen for column in own])
