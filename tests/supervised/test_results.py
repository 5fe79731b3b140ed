"""What the page says of supervised partitions."""

from pathlib import Path

from drpm.supervised import sweeps
from drpm.supervised.results import supervised_sections
from tests.training.results_folder import VERSIONS, write_json


def write(results: Path, scores: list[float]) -> None:
    """Runs of Fashion-MNIST, where the sweep would have put them."""
    folder = results / "supervised" / sweeps.supervised().runs[1].folder
    for seed, score in enumerate(scores):
        metrics = {"f1": score, "accuracy": 0.5, "size_error": 1.25}
        facts = {"wall_time": 60, "device": "cpu", "versions": VERSIONS}
        write_json(folder / f"seed-{seed}" / "result.json", {"metrics": metrics, **facts})


def text(results: Path) -> str:
    return "\n".join(section.text for section in supervised_sections(results))


def test_beside_the_paper(tmp_path: Path) -> None:
    write(tmp_path, [0.8270, 0.8290])
    assert "| DRPM | paper | 0.9643 ± 0.0002 | - | 5 | 0.8271 ± 0.0003 | - | 5 |" in text(tmp_path)
    assert "|  | here | - | - | - | 0.8280 ± 0.0014 | 1.2500 ± 0.0000 | 2 |" in text(tmp_path)
    assert "Lower than the paper" not in text(tmp_path)


def test_a_shortfall_of_the_third_digit_is_told(tmp_path: Path) -> None:
    write(tmp_path, [0.8260, 0.8262])
    assert "two of its deviations, as rounded there: DRPM (Fashion-MNIST F1)." in text(tmp_path)
