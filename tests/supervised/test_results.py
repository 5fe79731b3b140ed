"""What the page says of supervised partitions."""

import json
from pathlib import Path

from drpm.supervised import sweeps
from drpm.supervised.choosing import describe_choice
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
    assert "| DRPM | paper | 0.9643 ± 0.0002 | - | - | 0.8271 ± 0.0003 | - | - |" in text(tmp_path)
    assert "|  | here | - | - | - | 0.8280 ± 0.0014 | 1.2500 ± 0.0000 | 2 |" in text(tmp_path)
    assert "Lower than the paper" not in text(tmp_path)


def test_the_choice_of_the_weight_is_told(tmp_path: Path) -> None:
    write(tmp_path, [0.8270, 0.8290])
    assert "The weight of the size term is" not in text(tmp_path)
    folder = tmp_path / "supervised" / sweeps.supervised().runs[1].folder
    scores = [
        {"size_weight": weight, "seed": seed, "f1": score}
        for weight, values in ((0.1, (0.7, 0.7)), (0.01, (0.8, 0.82)), (0.001, (0.81, 0.83)))
        for seed, score in enumerate(values)
    ]
    for kept, told in (
        (0.001, "0.01. It is the smallest that was tried; a smaller one might be better.\n"),
        (0.01, "0.001.\n"),
    ):
        selection = {"size_weight": kept, "held_out": 6000, "scores": scores}
        run = folder / "seed-0" / "result.json"
        write_json(run, {**json.loads(run.read_bytes()), "selection": selection})
        tried = "0.8200 ± 0.0141 with 0.001, 0.8100 ± 0.0141 with 0.01, 0.7000 ± 0.0000 with 0.1"
        assert (
            f"- Fashion-MNIST. The weight of the size term is {kept}, chosen by the F1 score on "
            "6,000 elements of the training part that nothing was learnt from: "
            f"{tried}. As good within its deviation: {told}"
        ) in f"{text(tmp_path)}\n"
    judged = {"test batches": 39, "test batch size": "256 to 257"}
    write_json(run, {**json.loads(run.read_bytes()), "data": judged})
    expected = "- Fashion-MNIST. 39 test batches of 256 to 257 images. The weight of the size term"
    assert expected in text(tmp_path)
    # A seed that is yet to be finished changes nothing, though it comes first.
    (folder / "seed-0").rename(folder / "seed-2")
    (folder / "seed-1").rename(folder / "seed-10")
    (folder / "seed-0").mkdir()
    assert "The weight of the size term is 0.01, chosen" in text(tmp_path)


def test_nothing_is_smaller_than_no_weight_at_all() -> None:
    scores = [{"size_weight": weight, "seed": 0, "f1": 0.9 - weight} for weight in (0.0, 0.1)]
    told = describe_choice({"size_weight": 0.0, "held_out": 10, "scores": scores})
    assert "The weight of the size term is 0," in told
    assert "tried" not in told
    # With one weight there is nothing to choose.
    assert describe_choice({"size_weight": 0.0, "held_out": 0, "scores": scores[:1]}) == ""


def test_a_shortfall_of_the_third_digit_is_told(tmp_path: Path) -> None:
    write(tmp_path, [0.8260, 0.8262])
    assert "two of its deviations, as rounded there: DRPM (Fashion-MNIST F1)." in text(tmp_path)
