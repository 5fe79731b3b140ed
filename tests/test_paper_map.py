"""docs/paper_map.md is complete; its symbols and those of CONTRIBUTING.md's walks exist."""

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper_map.md"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALKS = re.findall(r"What happens in `[^\n]*:\n\n((?:\d+\. .*\n(?:   .*\n)*)+)", CONTRIBUTING)

NUMBERED = {
    "Prop.": "4.1",
    "Lemma": "4.2 4.3 B.5 B.6",
    "Def.": "A.1 B.1 B.2 B.4",
    "Cor.": "A.2 B.3",
}
PARTS = {
    "Sec. 3": "noise",
    "Sec. 4": "sampling",
    "Sec. A.1.1": "conditionals, relaxation",
    "Sec. B.4": "count, maximum, indicator, sigmoid, window, straight-through",
    "Sec. 5.1": "generative process",
    "Sec. C.2": "ELBO, bound, final loss, parameters, architecture, annealing, pretraining, "
    "initial priors, VaDE, samples per cluster, STL-10",
    "Sec. C.3": "generative model, ELBO, bound, aggregation, pairwise divergence, "
    "weights and scores",
    "Sec. 5.2": "baselines, evaluation",
    "Sec. 5.3": "partition, baseline",
    "Sec. C.4": "noise, loss, masks, parameters, architecture, training, evaluation, regularizer, "
    "CelebA",
    "Sec. C.5": "parameters, loss, evaluation",
}
STATEMENTS = [
    *(f"Eq. {number}" for number in (*range(1, 43), 45, 46) if number != 11),  # 11: a loss
    *(f"{kind} {number}" for kind, numbers in NUMBERED.items() for number in numbers.split()),
    *(f"{section}, {part}" for section, parts in PARTS.items() for part in parts.split(", ")),
    "Sec. C.1",
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


def test_every_statement_has_one_row() -> None:
    found = [statement for row in rows() for statement in expand(row.statement)]
    assert sorted(found) == sorted(STATEMENTS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.statement)
def test_its_symbols_exist(row: Row) -> None:
    named = symbols(row.symbol)
    assert named, f"{row.statement} names no symbol."
    for symbol in [*named, *symbols(row.remarks)]:
        resolve_name(symbol)


def test_there_are_two_walks_of_at_most_twelve_stops() -> None:
    assert len(WALKS) == 2
    assert all(len(re.findall(r"^\d+\.", walk, re.M)) <= 12 for walk in WALKS)


@pytest.mark.parametrize("symbol", re.findall(r"`(drpm\.[^`]+)`", "".join(WALKS)))
def test_every_stop_is_a_symbol(symbol: str) -> None:
    if symbol.endswith("fill_fused"):
        pytest.importorskip("triton", reason="comes with CUDA")
    resolve_name(symbol)
