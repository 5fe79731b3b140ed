"""The words that a shell completes are those that there are."""

from importlib import import_module
from typing import get_args

from drpm.cli import completion
from drpm.cli.reproduce import LIST, SOURCES
from drpm.clustering.config import Method
from drpm.data.registry import DATASETS
from drpm.training.presets import names
from drpm.training.sweeps import SWEEPS


def test_words_are_all_there_are() -> None:
    for source in SOURCES:
        import_module(source)
    # Other tests may have registered sweeps of their own.
    shipped = {name for name, make in SWEEPS.items() if make.__module__ in SOURCES}
    assert {*shipped, LIST} == set(completion.SWEEPS)
    assert list(completion.DATA_SETS) == list(DATASETS)
    assert get_args(Method) == completion.CLUSTERING_METHODS


def test_completing() -> None:
    assert completion.among(completion.DATA_SETS)("m") == ["mnist", "mpi3d", "multimnist", "mosaic"]
    assert completion.preset("paper-cluster-mn") == names("paper-cluster-mn") != []
    assert completion.preset("nothing") == []
