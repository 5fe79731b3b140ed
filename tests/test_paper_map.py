"""docs/paper_map.md names symbols that exist, and leaves out no statement of the paper."""

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

MAP = Path(__file__).parents[1] / "docs" / "paper_map.md"

STATEMENTS = [
    *(f"Eq. {number}" for number in range(1, 43) if number != 11),  # 11: an experiment's loss
    "Eq. 45",
    "Eq. 46",
    "Prop. 4.1",
    "Lemma 4.2",
    "Lemma 4.3",
    "Def. A.1",
    "Cor. A.2",
    "Def. B.1",
    "Def. B.2",
    "Cor. B.3",
    "Def. B.4",
    "Lemma B.5",
    "Lemma B.6",
    "Sec. 3, noise",
    "Sec. 4, sampling",
    "Sec. A.1.1, conditionals",
    "Sec. A.1.1, relaxation",
    "Sec. B.4, count",
    "Sec. B.4, maximum",
    "Sec. B.4, indicator",
    "Sec. B.4, sigmoid",
    "Sec. B.4, window",
    "Sec. B.4, straight-through",
    "Sec. C.1",
    "Sec. 5.1, generative process",
    "Sec. C.2, ELBO",
    "Sec. C.2, bound",
    "Sec. C.2, final loss",
    "Sec. C.2, parameters",
    "Sec. C.2, architecture",
    "Sec. C.2, annealing",
    "Sec. C.2, pretraining",
    "Sec. C.2, start of the priors",
    "Sec. C.2, VaDE",
    "Sec. C.2, samples per cluster",
    "Sec. C.2, STL-10",
    "Sec. C.3, generative model",
    "Sec. C.3, ELBO",
    "Sec. C.3, bound",
    "Sec. C.3, aggregation",
    "Sec. C.3, pairwise divergence",
    "Sec. C.3, weights and scores",
    "Sec. 5.2, baselines",
    "Sec. 5.2, evaluation",
    "Sec. 5.3, partition",
    "Sec. 5.3, baseline",
    "Sec. C.4, noise",
    "Sec. C.4, loss",
    "Sec. C.4, masks",
    "Sec. C.4, parameters",
    "Sec. C.4, architecture",
    "Sec. C.4, training",
    "Sec. C.4, evaluation",
    "Sec. C.4, regulariser",
    "Sec. C.4, CelebA",
    "Sec. C.5, parameters",
    "Sec. C.5, loss",
    "Sec. C.5, evaluation",
]


class Row(NamedTuple):
    statement: str
    text: str
    symbol: str
    remarks: str


def rows() -> list[Row]:
    lines = [line for line in MAP.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(*row) for row in cells if row[0] != "statement" and set(row[0]) != {"-"}]


def expand(statement: str) -> list[str]:
    """'Eq. 22-24' stands for three statements."""
    match = re.fullmatch(r"Eq\. (\d+)-(\d+)", statement)
    if match is None:
        return [statement]
    first, last = map(int, match.groups())
    return [f"Eq. {number}" for number in range(first, last + 1)]


def symbols(text: str) -> list[str]:
    return re.findall(r"`(drpm\.[\w.]+)`", text)


def resolve(symbol: str) -> object:
    """Import the longest prefix that is a module, and look up the rest in it."""
    names = symbol.split(".")
    for length in range(len(names), 0, -1):
        try:
            found: object = importlib.import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(symbol)


def test_every_statement_has_one_row() -> None:
    found = [statement for row in rows() for statement in expand(row.statement)]
    assert sorted(found) == sorted(STATEMENTS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.statement)
def test_its_symbols_exist(row: Row) -> None:
    named = symbols(row.symbol)
    assert named, f"{row.statement} names no symbol."
    for symbol in [*named, *symbols(row.remarks)]:
        resolve(symbol)


@pytest.mark.parametrize(
    "symbol", ["drpm.Nowhere", "drpm.nowhere.fill", "drpm.RandomPartition.nothing"]
)
def test_a_missing_symbol_is_noticed(symbol: str) -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(symbol)
