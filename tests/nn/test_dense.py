"""Fully connected layers."""

import torch

from drpm.nn.encoders import dense_layers


def test_by_hand() -> None:
    torch.manual_seed(0)
    network = dense_layers([2, 6, 5]).double()
    x = torch.randn(5, 2, dtype=torch.float64)
    hidden = (x @ network[0].weight.T + network[0].bias).clamp_min(0)
    expected = (hidden @ network[2].weight.T + network[2].bias).clamp_min(0)
    torch.testing.assert_close(network(x), expected)
    assert (expected > 0).any()
