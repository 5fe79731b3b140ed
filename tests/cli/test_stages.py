"""What commands that train show in the end."""

import json

import pytest

from drpm.cli.stages import show_results

COLUMNS = {"accuracy": "ACC", "gap": "Gap"}


def results(*accuracies: float) -> list[dict[str, object]]:
    return [
        {"seed": seed, "metrics": {"accuracy": x, "gap": None, "loss": 1.0}, "page": f"{seed}.html"}
        for seed, x in enumerate(accuracies)
    ]


def test_one_seed_has_no_mean(capsys: pytest.CaptureFixture[str]) -> None:
    show_results(results(0.5), COLUMNS, as_json=False)
    assert capsys.readouterr().out == "Seed\tACC\tGap\n0\t0.500\t-\nPage: 0.html\n"


def test_several_seeds_end_with_mean_and_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    show_results(results(0.5, 0.6, 0.7), COLUMNS, as_json=False, digits=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == ["0\t0.50\t-", "1\t0.60\t-", "2\t0.70\t-", "mean\t0.60 ± 0.10\t-"]
    assert lines[5:] == ["Page: 0.html", "Page: 1.html", "Page: 2.html"]


def test_a_program_reads_one_result_or_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (results(0.5), results(0.5, 0.6)):
        show_results(given, COLUMNS, as_json=True)
        read = json.loads(capsys.readouterr().out)
        assert read == (given if len(given) > 1 else given[0])
