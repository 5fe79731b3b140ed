"""Settings, scores, figures and studies of runs."""

import io
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from drpm.data.mpi3d import FACTOR_NAMES
from drpm.experiments import run_study
from drpm.factors.config import FactorsConfig, FactorsJob
from drpm.factors.experiment import Factors, evaluate_pairs, figure_data, measure_usage
from drpm.factors.models import FactorVAE, SharedFactors, load_factors
from drpm.studies.results import summarize_metric
from drpm.studies.sweeps import CHOSEN, RATE, RATES, RATES_METHODS, WEIGHTS
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, RunFolder
from tests.oracles import generator


def shares(*numbers: int, latent: int = 10) -> SharedFactors:
    """Pairs that share their first dimensions."""
    mask = (torch.arange(latent) < torch.tensor(numbers)[:, None]).float()
    codes = torch.zeros(len(numbers), 2, latent)
    return SharedFactors(mask.sum(-1), mask, codes, codes)


def test_dimensions_in_use() -> None:
    # Two of three dimensions in use are among the five that are shared.
    deviations = torch.tensor([1.0, 0.5, *[0.1] * 7, 2.0])
    codes = deviations * torch.randn(20, 2, 10, generator=generator(0))
    usage = measure_usage(shares(*range(5), *[5] * 15)._replace(codes=codes))
    assert usage == {"used_dimensions": 3, "shared_used": pytest.approx(1.9, abs=0.051)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": "arm", "factors": FactorsConfig(method="label", latent=6)},
            "latent must be at least 7, one for each factor, for the method 'label', but got 6",
        ),
        ({"data": "mpi3d", "image_size": 32}, "image_size must be 64 for mpi3d, but got 32"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FactorsJob(**changes)


def untrained(latent: int) -> FactorVAE:
    torch.manual_seed(0)
    return FactorVAE((1, 8, 8), FactorsConfig(latent=latent))


def drawn(found: SharedFactors) -> dict[str, Any]:
    fitted = untrained(found.mask.shape[-1])
    images = torch.rand(len(found.mask), 1, 8, 8)
    packed = figure_data(fitted, {"first": images, "second": images}, found)
    with np.load(io.BytesIO(packed)) as arrays:
        return dict(arrays)


def test_bars() -> None:
    arrays = drawn(shares(3, 3, 5, 0))
    assert arrays["bars__rates"][:, 0].tolist() == [0.75] * 3 + [0.25] * 2 + [0] * 5
    expected = [0.25, 0, 0, 0.5, 0, 0.25, 0, 0, 0, 0, 0]
    assert arrays["bars__count"][:, 0].tolist() == expected
    assert arrays["bars_groups__count"].tolist() == [str(i) for i in range(11)]


def test_images_with_the_shared_part_of_the_next_pair() -> None:
    """They show whether what is shared says anything: exchanged within a pair, it need not."""
    codes = 30 * torch.randn(3, 2, 4, generator=generator(0))
    # The first pair shares two dimensions, the second all of them, the third none.
    arrays = drawn(shares(2, 4, 0, latent=4)._replace(averaged=codes))
    assert arrays["grid_rows__pairs"].tolist()[-2:] == ["first, next pair's", "second, next pair's"]
    expected = codes.clone()
    expected[0, :, :2] = codes[1, 0, :2]
    expected[1] = codes[2, 0]
    images = 255 * untrained(4).decode(expected).squeeze(2).movedim(0, 1)
    assert np.abs(arrays["grid__pairs"][-2:] - images.numpy()).max() <= 0.51
    assert (arrays["grid__pairs"][-2:, 0] != arrays["grid__pairs"][2:4, 0]).any()


def test_defaults_depend_on_the_device() -> None:
    for device, given, expected in (
        ("cuda", FactorsJob(), FactorsJob("arm", "3", 40, 64, 10_000)),
        ("cpu", FactorsJob(), FactorsJob("arm", "3", 2, 32, 2_000)),
        ("cpu", FactorsJob("mpi3d", "mixed", 2), FactorsJob("mpi3d", "mixed", 2, 64, 2_000)),
        ("cpu", FactorsJob("own.npz"), FactorsJob("own.npz")),
        # Random is what runs without the setting have.
        ("cpu", FactorsJob(which="random"), FactorsJob("arm", "3", 2, 32, 2_000)),
    ):
        assert Factors().resolve(given, torch.device(device)) == expected


RESULTS = Path(__file__).parents[2] / "results"
SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    *("training.device=cpu", "averaging=multi-level"),
]
OPTIONS = {"data": "arm", "shared": "3", "angles": 2, "image_size": 16, "test_pairs": 100}


@pytest.mark.usefixtures("blank_pictures")
def test_all_seeds_are_evaluated_on_the_same_pairs(tmp_path: Path) -> None:
    options = {**OPTIONS, "which": "fixed"}
    run_study(tmp_path, "factors", "fast-factors", [0, 1], SETTINGS, options, device="cpu")
    sampler = Factors().load(FactorsJob(**options), torch.device("cpu"))
    pairs = sampler({"pair": torch.zeros(100)}, generator(1_000_000))
    for seed in (0, 1):
        run = RunFolder.open(tmp_path / f"seed-{seed}")
        shown = np.load(run.path / ARRAYS)["grid__pairs"][:2] / 255.0
        np.testing.assert_allclose(shown[0], pairs["first"][:8], atol=1e-6)
        np.testing.assert_allclose(shown[1], pairs["second"][:8], atol=1e-6)
        # By the codes that the model averages, which need not be their plain mean.
        found = load_factors(run.model_dir).share(pairs["first"], pairs["second"])
        known = pairs["factors"], pairs["is_shared"]
        expected = evaluate_pairs(found.averaged, found.mask, *known)._asdict()
        metrics, by_factor = run.result()["metrics"], expected.pop("by_factor")
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
        for name, values in by_factor.items():
            assert [metrics[f"{name}_{x}"] for x in FACTOR_NAMES] == pytest.approx(values)
            is_shared = name.startswith("shared")
            assert [x is not None for x in values] == [is_shared] * 3 + [not is_shared] * 4


def test_the_chosen_hyperparameters_have_the_highest_evidence() -> None:
    def best(study: str, values: Any, methods: Any) -> float:
        def mean(value: float) -> float:
            studies = [RESULTS / study.format(method, value) for method in methods]
            return fmean(summarize_metric(each, "pair_evidence").mean for each in studies)

        return max(values, key=mean)

    assert best("factor-rates/{}/rate-{:g}", RATES, RATES_METHODS) == RATE
    for method, chosen in CHOSEN.items():
        assert best("factor-weights/{}/weight-{:g}", WEIGHTS, [method]) == chosen
