"""Folders whose tensors are not those of the model, though all checksums match."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import make_blobs

from drpm.clustering import LatentGMM, load_clustering
from drpm.factors.models import FactorVAE, load_factors
from drpm.multitask.models import MultitaskNetwork, load_multitask
from drpm.supervised.models import Partitioner, load_partitioner
from drpm.training.checkpoint import load_model, save_model
from drpm.training.errors import RunError
from tests.clustering.test_fitted import COLUMNS, make
from tests.factors.test_models import SMALL
from tests.multitask import toys as multitask
from tests.supervised import test_models as supervised


def clustering(method: str) -> Any:
    return replace(make(method), shift=torch.zeros(COLUMNS), scale=torch.ones(COLUMNS))


def estimator() -> Any:
    X, _ = make_blobs(60, 3, centers=3, random_state=0)
    return LatentGMM(3, hidden=(8,), latent_dim=2, max_iter=1, random_state=0).fit(X)


def tasks() -> Any:
    return MultitaskNetwork((1, 16, 16), {"left": 3, "right": 3}, multitask.settings())


def partitioner() -> Any:
    model = Partitioner((2,), supervised.CLASSES, supervised.CONFIG)
    model.shift, model.scale = torch.zeros(2), torch.ones(2)
    return model


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "drpm-vc": (lambda: clustering("drpm-vc"), load_clustering),
    "gmm": (lambda: clustering("gmm"), load_clustering),
    "contrastive-head": (lambda: clustering("contrastive-head"), load_clustering),
    "estimator": (estimator, LatentGMM.load),
    "factors": (lambda: FactorVAE((1, 8, 8), SMALL), load_factors),
    "multitask": (tasks, load_multitask),
    "supervised": (partitioner, load_partitioner),
}


@pytest.mark.parametrize("kind", MODELS)
def test_tensors_of_another_model_are_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    build, load = MODELS[kind]
    build().save(tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before), "loading draws nothing"
    tensors, description = load_model(tmp_path)
    start = f"The model in {tmp_path} is damaged: the tensor"
    problems = {"spare is not part of the model": {**tensors, "spare": torch.ones(1)}}
    name, tensor = next((name, x) for name, x in tensors.items() if x.is_floating_point())
    problems[f"{name} has type torch.int64"] = {**tensors, name: tensor.long()}
    for number, (name, tensor) in enumerate(tensors.items()):
        others = {key: x for key, x in tensors.items() if key != name}
        wrong = torch.zeros(*tensor.shape, 2)
        shapes = f"{tuple(wrong.shape)} instead of {tuple(tensor.shape)}"
        if number % 2:
            problems[f"{name} is missing"] = others
        else:
            problems[f"{name} has shape {shapes}"] = {**others, name: wrong}
    for problem, spoiled in problems.items():
        save_model(tmp_path, spoiled, description)
        with pytest.raises(RunError) as error:
            load(tmp_path)
        assert str(error.value) == f"{start} {problem}."


@pytest.mark.parametrize("kind", MODELS)
def test_descriptions_of_no_model_are_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    build, load = MODELS[kind]
    build().save(tmp_path)
    tensors, description = load_model(tmp_path)
    changes: list[dict[str, Any]] = [{"config": x} for x in (None, 3, "epochs = 3", "[")]
    for change in [*changes, {"shape": ["a"]}, {"shape": [-1]}]:
        save_model(tmp_path, tensors, description | change)
        with pytest.raises(RunError) as error:
            load(tmp_path)
        assert str(error.value).startswith(f"The model in {tmp_path} is damaged: model.json: ")
        assert "\n" not in str(error.value)
    save_model(tmp_path, tensors, description | {"kind": "other"})
    with pytest.raises(RunError, match=r"must be of the kind .*, but got 'other'"):
        load(tmp_path)
