"""Figures from the arrays that runs have kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from drpm.multitask.drawn import draw_arrays
from drpm.multitask.evaluation import TaskScores
from drpm.multitask.kept import draw_neurons, draw_noisy_images
from tests.multitask.toys import toy

SHARES = torch.tensor([[0.7, 0.0, 0.1, 0.1], [0.2, 0.9, 0.2, 0.0], [0.1, 0.1, 0.7, 0.9]])
ROWS = ["b (0.00)", "c (0.40)", "a (0.90)"]


def keep(folder: Path, scores: TaskScores) -> None:
    data = replace(toy(), tasks=("a", "b", "c"), noise_ratios=(0.9, 0.0, 0.4))
    (folder / "arrays.npz").write_bytes(draw_arrays(data, scores, 4))


def test_the_neurons_of_tasks(tmp_path: Path) -> None:
    keep(tmp_path, TaskScores(torch.rand(3), torch.tensor([1.0, 1.0, 2.0]), SHARES))
    figure = draw_neurons(tmp_path, "Neurons")
    assert figure is not None
    axes = figure.axes[0]
    expected = SHARES[[1, 2, 0]][:, [1, 3, 2, 0]]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), expected)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ROWS
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "3", "2", "0"]
    assert axes.get_xlabel() == "neuron"


def test_the_neurons_of_earlier_runs(tmp_path: Path) -> None:
    """Tasks were in the order of their numbers, and of neurons some were left out."""
    np.savez(
        tmp_path / "arrays.npz",
        **{
            "matrix__neurons": SHARES.numpy(),
            "matrix_rows__neurons": np.array(["a (0.90)", "b (0.00)", "c (0.40)"]),
            "matrix_columns__neurons": np.array(list("4567")),
            "bars__sizes-by-noise": np.array([[1.5], [1.5], [2.0]]),
            "bars_groups__sizes-by-noise": np.array(ROWS),
        },
    )
    figure = draw_neurons(tmp_path, "Neurons")
    assert figure is not None
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ROWS
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["5", "7", "6", "4"]
    assert axes.get_xlabel() == "neuron (the first 4 of 5)"


def test_runs_that_have_kept_nothing(tmp_path: Path) -> None:
    assert draw_neurons(tmp_path, "") is draw_noisy_images(tmp_path, "") is None
    # All have all neurons, and images are no grid of noise ratios.
    keep(tmp_path, TaskScores(torch.rand(3)))
    assert draw_neurons(tmp_path, "") is draw_noisy_images(tmp_path, "") is None


def test_images_with_noise(tmp_path: Path) -> None:
    grid = np.zeros((2, 3, 1, 8, 8), np.uint8)
    columns = np.array(["0.0", "0.5", "0.9"])
    np.savez(tmp_path / "arrays.npz", grid__images=grid, grid_columns__images=columns)
    figure = draw_noisy_images(tmp_path, "Images")
    assert figure is not None
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == columns.tolist()
