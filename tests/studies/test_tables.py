"""The studies of tables: all methods with tiny settings, and their scores by hand."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from drpm.studies import tables
from drpm.studies.sweeps import TABLES
from drpm.training.runs import RunFolder

TINY = {"max_iter": 1, "hidden": (4,)}


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_classes(name: str) -> None:
    X, y = tables.load_table(name, 1)
    assert X.ndim == 2
    assert y.shape == X.shape[:1]
    assert np.bincount(y).min() > 0
    same = np.array_equal(X, tables.load_table(name, 2)[0])
    assert same == ("blobs" not in name)


def test_all_methods(tmp_path: Path) -> None:
    tables.run_study(tmp_path, "iris", 3, settings=TINY)
    result = RunFolder(tmp_path).result()
    metrics = result["metrics"]
    assert result["seed"] == 3
    assert {*result["packages"]} == {"sklearn", "drpm"}
    assert {name.split()[0] for name in metrics} == {*tables.METHODS}
    assert {name.split()[1] for name in metrics} == {"accuracy", "nmi", "ari", "seconds"}
    # Standardized columns weigh the uninformative widths of sepals more.
    assert metrics["k-means accuracy"] == pytest.approx(0.83, abs=0.02)
    assert metrics["k-means-raw accuracy"] == pytest.approx(0.89, abs=0.02)


def test_limits_are_met_and_a_missing_package_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {**tables.LIMITED, "other": "no_such_package:Clustering"}
    del absent["k-means-constrained"]
    monkeypatch.setattr(tables, "LIMITED", absent)
    with pytest.warns(UserWarning, match=r"other is left out, .*: pip install no_such_package\.$"):
        tables.run_study(tmp_path, "iris", 0, limits=True, settings=TINY)
    result = RunFolder(tmp_path).result()
    assert result["sizes"] == {"size_min": 48, "size_max": 52}
    assert result["metrics"]["drpm-vc met"] == 1
    assert not any("other" in name for name in result["metrics"])


def test_scores() -> None:
    X, y = load_iris(return_X_y=True)
    rows = StandardScaler().fit_transform(X)
    found = KMeans(3, n_init=1, random_state=0).fit(rows)
    scores = tables.score(rows, y, found.labels_, {"size_min": 1, "size_max": 60})
    assert scores["within"] == pytest.approx(found.inertia_ / rows.size)
    assert scores["met"] == (np.bincount(found.labels_).max() <= 60)
    assert tables.score(rows, y, y, {"size_min": 50, "size_max": 50})["met"] == 1
    assert tables.score(rows, y, y, {"size_min": 51, "size_max": 150})["met"] == 0
    assert tables.score(rows, y, y, {}) == {"nmi": 1, "ari": 1, "accuracy": 1}
