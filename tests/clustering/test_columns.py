"""Which columns of wide rows are shown."""

import torch

from drpm.clustering.columns import telling_columns


def test_clusters_take_turns() -> None:
    # Cluster 0 is far off in all columns but one, and still takes no more than its share.
    means = torch.tensor([[9.0, 8, 7, 6, 0], [0, 0, 0, 0, 1]])
    samples = means[:, None] + torch.tensor([-1.0, 1])[None, :, None]
    assert telling_columns(samples, torch.ones(5), most=2).tolist() == [0, 4]
    assert sorted(telling_columns(samples, torch.ones(5), most=9).tolist()) == [0, 1, 2, 3, 4]


def test_distances_count_in_deviations() -> None:
    samples = torch.tensor([[[3.0, 2, 100]], [[0, 0, 0]]])
    deviations = torch.tensor([10.0, 1, 0])
    # The last column is the same in all of the data, whatever is generated.
    assert telling_columns(samples, deviations, most=1).tolist() == [1]


def test_one_cluster_is_no_error() -> None:
    assert telling_columns(torch.randn(1, 4, 6), torch.ones(6), most=3).shape == (3,)


def test_more_clusters_than_columns() -> None:
    assert telling_columns(torch.randn(8, 4, 3), torch.ones(3), most=5).unique().tolist() == [
        *range(3)
    ]
