import pytest
import torch
import torch.nn.functional as F

from drpm.factors.layers import downsample, upsample


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel"), [(3, 32, 4), (8, 8, 4), (8, 3, 4), (8, 16, 2)]
)
def test_downsampling_is_a_convolution(channels, outputs, kernel):
    images = torch.randn(2, channels, 8, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outputs, channels, kernel, kernel, dtype=torch.float64, requires_grad=True)
    padding = (kernel - 2) // 2
    assert_same(
        downsample(images, weight), F.conv2d(images, weight, None, 2, padding), images, weight
    )


@pytest.mark.parametrize(("channels", "outputs"), [(8, 8), (32, 3), (3, 32)])
def test_upsampling_is_a_transposed_convolution(channels, outputs):
    images = torch.randn(2, channels, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(channels, outputs, 4, 4, dtype=torch.float64, requires_grad=True)
    assert_same(
        upsample(images, weight), F.conv_transpose2d(images, weight, None, 2, 1), images, weight
    )


def assert_same(ours, expected, *inputs):
    """Compare values and gradients."""
    torch.testing.assert_close(ours, expected)
    weights = torch.randn_like(expected)
    gradients = (torch.autograd.grad((x * weights).sum(), inputs) for x in (ours, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
