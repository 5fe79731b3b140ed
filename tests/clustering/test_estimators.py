"""The estimators: scikit-learn's own checks, and what they promise besides."""

import math
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from drpm.clustering import DRPMClustering, LatentGMM, VaDE
from drpm.training.checkpoint import load_model, save_model
from drpm.training.errors import RunError

ESTIMATORS = [DRPMClustering, VaDE, LatentGMM]
METHODS = ["predict", "predict_proba", "transform"]

each = pytest.mark.parametrize("kind", ESTIMATORS)


def quick(kind: Any, n_clusters: int = 3, **parameters: Any) -> Any:
    settings = {"max_iter": 3, "hidden": (32, 32), "latent_dim": 4, "random_state": 0}
    return kind(n_clusters, **settings | pretrained(kind, 8) | parameters)


def pretrained(kind: Any, epochs: int) -> dict[str, int]:
    """So many epochs in the place of the usual fifty, which only good clusters take."""
    return {} if kind is LatentGMM else {"pretrain_iter": epochs}


def blobs(n: int = 60, d: int = 3, seed: int = 0) -> tuple[Any, Any]:
    X, y = make_blobs(n, d, centers=3, random_state=seed)
    return X * 10 + 100, y


@pytest.fixture(scope="module")
def images() -> Any:
    return load_digits().images[:150] / 16


@parametrize_with_checks(
    [kind(n_clusters=2, max_iter=2, **pretrained(kind, 8)) for kind in ESTIMATORS]
)
def test_it_is_a_scikit_learn_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


# Clusters.


@each
def test_a_table_in_a_csv_file(tmp_path: Path, kind: Any) -> None:
    """Four groups, 14 deviations apart; at six seeds the agreement was 1 every time."""
    X, y = make_blobs(200, centers=10 * np.eye(4)[:, :3], random_state=1)
    np.savetxt(tmp_path / "table.csv", X * [1, 100, 0.01] + [0, 5, 1000], delimiter=",")
    table = np.loadtxt(tmp_path / "table.csv", delimiter=",")
    labels = kind(4, max_iter=60, random_state=0).fit_predict(table)
    assert adjusted_rand_score(y, labels) > 0.8


@each
def test_predictions_are_the_likeliest_clusters(kind: Any) -> None:
    X, _ = blobs()
    model = quick(kind).fit(X)
    probs = model.predict_proba(X)
    assert probs.shape == (60, 3)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(model.predict(X), probs.argmax(1))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert model.n_iter_ == 3
    assert model.n_features_in_ == 3
    assert model.cluster_centers_.shape == (3, 3)


def test_the_score_of_certain_codes() -> None:
    """Then it is the density of rows and codes, in the units of the data, but for the entropy."""
    X, _ = blobs()
    model = quick(VaDE).fit(X)
    assert list(model.get_feature_names_out()) == [f"vade{i}" for i in range(4)]
    with torch.no_grad():
        model.model_.autoencoder.reset_variance(-20.0)
    codes, clusters = model.transform(X), model.model_.mixture
    deviation = model.model_.config.network.deviation * model.model_.scale.numpy()
    fit = scipy.stats.norm(model.inverse_transform(codes), deviation).logpdf(X).sum(1)
    # Every column of a code given every cluster.
    laws = scipy.stats.norm(clusters.means.numpy(), clusters.variances.sqrt().numpy())
    joint = laws.logpdf(codes[:, None]).sum(2) + clusters.log_weights.numpy()
    entropy = codes.shape[1] * 0.5 * (1 + math.log(2 * math.pi) - 20.0)
    expected = fit + scipy.special.logsumexp(joint, 1) + entropy
    assert model.score(X) == pytest.approx(expected.mean(), rel=1e-3, abs=1e-3)


def test_constant_columns_and_equal_rows() -> None:
    X, _ = blobs()
    X[:, 1] = 1e6 / 3
    model = quick(DRPMClustering).fit(X)
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite(model.sample(5)[0]).all()
    model = quick(DRPMClustering, 2).fit(np.full((8, 2), 7.0))
    assert model.model_.autoencoder.likelihood == "gaussian"


# Images.


@pytest.mark.parametrize(("kind", "channels"), [(DRPMClustering, None), (VaDE, 1), (LatentGMM, 3)])
def test_images_come_out_as_they_went_in(kind: Any, channels: int | None, images: Any) -> None:
    X = images if channels is None else np.repeat(images[:, None], channels, 1)
    model = quick(kind, 5).fit(X)
    new, labels = model.sample(7)
    assert new.shape == (7, *X.shape[1:])
    assert new.min() >= 0
    assert new.max() <= 1
    assert labels.shape == (7,)
    assert model.inverse_transform(model.transform(X)).shape == X.shape
    assert model.cluster_centers_.shape == (5, *X.shape[1:])
    for method in METHODS:
        flat = getattr(model, method)(X.reshape(len(X), -1))
        np.testing.assert_array_equal(flat, getattr(model, method)(X))


def test_other_images_are_refused(images: Any) -> None:
    model = quick(VaDE, 5).fit(images)
    with pytest.raises(
        ValueError, match=r"X must have inputs of shape \(8, 8\), .* but got \(4, 16\)"
    ):
        model.predict(images.reshape(-1, 4, 16))
    with pytest.raises(ValueError, match=r"X must have shape .*, but got \(150, 1, 1, 8, 8\)"):
        model.fit(images[:, None, None])


# Sampling.


@each
def test_samples_and_their_clusters(kind: Any) -> None:
    X, _ = blobs()
    model = quick(kind).fit(X)
    new, labels = model.sample(200)
    assert new.shape == (200, 3)
    assert set(labels) <= {0, 1, 2}
    np.testing.assert_array_equal(model.sample(200)[0], new)
    assert (model.sample(200, random_state=1)[0] != new).any()
    new, labels = model.sample(4, cluster=1)
    assert new.shape == (4, 3)
    assert (labels == 1).all()
    assert model.sample()[0].shape == (1, 3)
    new, labels = model.sample_partition(90)
    assert new.shape == (90, 3)
    assert set(labels) <= {0, 1, 2}
    assert (model.sample_partition(90, random_state=1)[0] != new).any()


# Repeating and saving.


def test_fits_in_threads_are_those_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(80, 4))
    seed_torch = torch.manual_seed

    def seed_slowly(seed: int) -> Any:
        found = seed_torch(seed)
        time.sleep(0.05)  # the others' opportunity to seed it too
        return found

    def fit(seed: int) -> Any:
        return quick(DRPMClustering, random_state=seed).fit(X)

    monkeypatch.setattr(torch, "manual_seed", seed_slowly)
    before, seeds = torch.get_rng_state(), range(4)
    expected = [fit(seed) for seed in seeds]
    with ThreadPoolExecutor(len(seeds)) as pool:
        found = list(pool.map(fit, seeds))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.labels_, other.labels_)
        np.testing.assert_array_equal(one.cluster_centers_, other.cluster_centers_)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.unshifted
def test_a_fresh_process_predicts_the_same(tmp_path: Path) -> None:
    shapes = {DRPMClustering: (60, 4, 4), VaDE: (60, 3), LatentGMM: (60, 4, 4)}
    models = {}
    for kind, shape in shapes.items():
        X = np.random.default_rng(0).normal(3, 2, shape)
        models[kind.__name__] = X, quick(kind, np.int64(3), hidden=np.array([32, 32])).fit(X)
    for name, (X, model) in models.items():
        model.save(tmp_path / name)
        np.save(tmp_path / f"X-{name}.npy", X)
    # One process for all, because starting it takes longer than all it does.
    code = """
import sys, numpy as np
sys.modules["pickle"].loads = sys.modules["pickle"].load = None
import drpm.clustering
folder, *names = sys.argv[1:]
for name in names:
    model = getattr(drpm.clustering, name).load(f"{folder}/{name}")
    X = np.load(f"{folder}/X-{name}.npy")
    np.savez(f"{folder}/out-{name}.npz", probs=model.predict_proba(X), codes=model.transform(X),
             new=model.sample(5)[0], labels=model.labels_, score=model.score(X))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *models], check=True)
    for name, (X, model) in models.items():
        out = np.load(tmp_path / f"out-{name}.npz")
        # To the last bit but one: how many threads share a product is not the model's to say.
        close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12, err_msg=name)
        close(out["probs"], model.predict_proba(X))
        close(out["codes"], model.transform(X))
        close(out["new"], model.sample(5)[0])
        close(out["score"], model.score(X))
        np.testing.assert_array_equal(out["labels"], model.labels_)
        np.testing.assert_array_equal(out["probs"].argmax(1), model.predict(X))
        assert type(model).load(tmp_path / name).get_params() == {
            **model.get_params(),
            "hidden": (32, 32),
        }


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        VaDE.load(tmp_path)
    quick(LatentGMM).fit(blobs()[0]).save(tmp_path)
    with pytest.raises(
        RunError, match=r"must contain a model of vade, but got latent-gmm; .*load_cl"
    ):
        VaDE.load(tmp_path)
    tensors, description = load_model(tmp_path)
    facts = description["facts"]
    wrong = {"labels": "old", "names": None, "parameters": {"n": 1}}
    for damaged in ({}, [], *({**facts, name: value} for name, value in wrong.items())):
        save_model(tmp_path, tensors, description | {"facts": damaged})
        with pytest.raises(RunError, match=r"must contain the labels, names .*them\.$"):
            LatentGMM.load(tmp_path)


# Showing, stopping, refusing.


def test_a_fit_can_be_stopped() -> None:
    X, _ = blobs()
    quick(LatentGMM).fit(X)  # whatever is imported on the way is not stopped half-way
    model = quick(LatentGMM, max_iter=10**6)
    stop = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert not hasattr(model, "labels_")


def test_a_fit_that_diverges_says_so() -> None:
    X, _ = blobs()
    with pytest.raises(RunError, match=r"^[^;/]* not finite[^;/]*\.$"):
        quick(VaDE, learning_rate=1e30, max_iter=30).fit(X)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"n_clusters": 0}, "n_clusters must be .*, but got 0"),
        ({"n_clusters": 61}, "n_clusters must be at most n_samples=60, but got 61"),
        ({"latent_dim": 1.5}, "latent_dim must be .*, but got 1.5"),
        ({"hidden": ()}, r"hidden must be .*, but got \(\)"),
        ({"hidden": 64}, "hidden must be .*, but got 64"),
        ({"hidden": np.ones((2, 2))}, "hidden must be .*, but got a list"),
        ({"hidden": (64, 0)}, "hidden must be .*, but got 0"),
        ({"max_iter": 0}, "max_iter must be .*, but got 0"),
        ({"pretrain_iter": -1}, "pretrain_iter must be .*, but got -1"),
        ({"batch_size": None}, "batch_size must be .*, but got None"),
        ({"learning_rate": 0}, "learning_rate must be .*, but got 0"),
        ({"beta": -1.0}, "beta must be .*, but got -1.0"),
        ({"objective": "bound"}, "objective must be .*, but got 'bound'"),
        ({"likelihood": "poisson"}, "likelihood must be .*, but got 'poisson'"),
        ({"likelihood": "bernoulli"}, r"X must lie in \[0, 1\] if likelihood is 'bernoulli'"),
        ({"device": "gpu"}, "device must be 'auto', 'cpu', .*, but got 'gpu'"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], complaint: str) -> None:
    X, _ = blobs()
    with pytest.raises(ValueError, match=complaint):
        quick(DRPMClustering).set_params(**parameters).fit(X)


def test_no_probability_outside_the_range() -> None:
    X = np.random.default_rng(0).uniform(size=(60, 3))
    model = quick(VaDE).fit(X)
    assert model.score(X) < 0
    with pytest.raises(ValueError, match=r"^X must lie in \[0, 1\] .* from \d.* to 9\d\.\d+\.$"):
        model.score(X * 100)
    # A row a little outside still has a nearest cluster.
    assert model.predict(X * 1.01).shape == (60,)


def test_bad_questions_are_named() -> None:
    X, _ = blobs()
    model = quick(VaDE).fit(X)
    for wrong in (3, -1, 1.5):
        with pytest.raises(ValueError, match="cluster must be an integer from 0 to 2 or None"):
            model.sample(3, cluster=wrong)
    with pytest.raises(ValueError, match="n must be an integer of at least 1, but got 0"):
        model.sample(0)
    with pytest.raises(ValueError, match=r"n must be an integer of at least 1, but got 2\.5"):
        model.sample_partition(2.5)
    with pytest.raises(ValueError, match="X must have 4 columns, the latent dimensions, but got 3"):
        model.inverse_transform(X)
