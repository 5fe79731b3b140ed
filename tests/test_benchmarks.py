"""The benchmark program runs, and its textbook yardstick computes the same thing as the laws.

Nothing here asserts a time: that is what the program itself reports.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import plan as plans
from benchmarks import textbook
from benchmarks.__main__ import main
from benchmarks.cases import DRPM, GRAPH, OPERATIONS, TEXTBOOK, Case
from benchmarks.growth import fit_growth
from benchmarks.measure import Measurement, measure
from benchmarks.results import Results
from benchmarks.table import notes
from benchmarks.units import format_bytes, format_ratio, format_seconds
from drpm import FisherHypergeometric, RandomPartition, RelaxedPlackettLuce
from drpm.studies.bounds import all_assignments


def parameters(num_elements: int, num_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_elements, generator=generator, dtype=torch.float64).requires_grad_(),
        torch.randn(num_groups, generator=generator, dtype=torch.float64).requires_grad_(),
    )


# The program


def test_quick_run_writes_table_json_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The program's own processes share the cores with the other tests.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = ["--quick", "--device", "cpu", "--sizes", "8,16", "--groups", "10"]
    main([*arguments, "--operations", "rsample_grad", "--out", str(tmp_path / "new")])
    document = json.loads((tmp_path / "new" / "results.json").read_text())
    measured = [
        (each["case"]["implementation"], each["case"]["num_elements"])
        for each in document["measurements"]
    ]
    assert measured == [("drpm", 8), ("drpm", 16), ("textbook", 8), ("textbook", 16)]
    assert all(each["seconds"] > 0 for each in document["measurements"])
    assert all(each["peak_bytes"] >= 0 for each in document["measurements"])
    assert {"date", "device_name", "torch", "torch_threads"} <= document["environment"].keys()
    assert len(document["growth"]) == 2
    assert (tmp_path / "new" / "cost.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert OPERATIONS["rsample_grad"] in output
    assert "results.json" in output

    results = str(tmp_path / "new" / "results.json")
    main(["--redraw", results, "--out", str(tmp_path / "again"), "--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == document
    assert OPERATIONS["rsample_grad"] in shown.err
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["cost.png"]


@pytest.mark.parametrize("implementation", [DRPM, TEXTBOOK])
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_operation_can_be_measured(operation: str, implementation: str) -> None:
    measurement = measure(Case(operation, implementation, 8, 3, "cpu"), isolate=False)
    assert measurement.failure is None
    assert measurement.seconds is not None
    assert measurement.fastest_seconds is not None
    assert 0 < measurement.fastest_seconds <= measurement.seconds
    assert measurement.repeats > 0


@pytest.mark.cuda
def test_a_cuda_graph_is_measured_or_its_failure_reported() -> None:
    measurement = measure(Case("rsample_grad", GRAPH, 64, 3, "cuda"))
    assert (measurement.seconds is None) == (measurement.failure is not None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sizes", "8,none"], "expected positive whole numbers separated by commas"),
        (["--groups", "0"], "expected positive whole numbers separated by commas"),
        (["--operations", "sing"], "'sing' is not an operation"),
        (["--device", "abacus"], "torch has no device 'abacus' here"),
        (["--redraw", "nowhere.json"], "there is no file 'nowhere.json'"),
        (["--out", __file__], "exists and is not a folder"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert complaint in capsys.readouterr().err


# The plan


def test_the_textbook_version_is_left_out_where_it_would_not_fit() -> None:
    planned = plans.plan("cpu", operations=["rsample_grad"])
    needed = {
        each.case.num_elements: each.needed_bytes
        for each in planned
        if each.case.implementation == TEXTBOOK and each.case.num_groups == plans.GROUPS[0]
    }
    assert needed[1024] is None
    assert needed[20_000] is not None
    assert needed[20_000] > plans.TEXTBOOK_LIMIT_BYTES["cpu"]
    assert all(each.needed_bytes is None for each in planned if each.case.implementation == DRPM)


def test_other_group_counts_are_measured_at_one_size() -> None:
    planned = plans.plan("cpu", operations=["sample"], sizes=[2048, 64], groups=[10, 100, 2])
    shapes = [
        (each.case.num_elements, each.case.num_groups)
        for each in planned
        if each.case.implementation == DRPM
    ]
    assert shapes == [(64, 10), (2048, 10), (64, 2), (64, 100)]


def test_graphs_are_measured_at_small_sizes_and_on_cuda_only() -> None:
    assert all(each.case.implementation != GRAPH for each in plans.plan("cpu", graph=True))
    graphs = [
        each.case for each in plans.plan("cuda", graph=True) if each.case.implementation == GRAPH
    ]
    assert [case.num_elements for case in graphs] == [64, 256, 512, 1024, 2048]
    assert {case.operation for case in graphs} == {"rsample_grad"}


# What is made of the figures


def test_the_exponent_is_fitted_to_the_largest_sizes() -> None:
    case = Case("sample", DRPM, 0, 10, "cpu")
    points = [
        Measurement(replace(case, num_elements=size), seconds=max(1.0, size**1.5 / 1e3))
        for size in (1, 10, 10**3, 10**4, 10**5)
    ]
    points.append(Measurement(replace(case, num_elements=10**6), needed_bytes=1e12))
    points.append(Measurement(replace(case, num_elements=10**3, num_groups=2), seconds=1e9))
    (growth,) = fit_growth(points)
    assert growth.exponent == pytest.approx(1.5)
    assert growth.sizes == [10**3, 10**4, 10**5]


def test_results_survive_a_file(tmp_path: Path) -> None:
    case = Case("sample", TEXTBOOK, 4, 2, "cpu")
    results = Results("cpu", {"torch": "0"}, [Measurement(case, 1.0, 0.9, 5, 3), Measurement(case)])
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_a_busy_machine_and_a_failure_are_mentioned() -> None:
    case = Case("sample", TEXTBOOK, 4, 2, "cpu")
    environment = {
        "torch": "0", "torch_threads": 2, "device_name": "abacus", "load_average": 3.0
    }  # fmt: skip
    results = Results("cpu", environment, [Measurement(case, failure="out of memory")])
    text = " ".join(notes(results))
    assert "Other programs were running (load 3.0" in text
    assert "failed: out of memory." in text


def test_quantities_have_three_digits() -> None:
    assert [format_seconds(s) for s in (2.5e-6, 0.0123, 0.9999, 12.34)] == [
        "2.50 µs", "12.3 ms", "1,000 ms", "12.3 s"
    ]  # fmt: skip
    assert [format_bytes(b) for b in (10, 2.5e5, 3.21e8, 6.9e10)] == [
        "< 0.1 MB", "0.25 MB", "321 MB", "69.0 GB"
    ]  # fmt: skip
    assert format_ratio(1234.5) == "1,234x"


# The yardstick


def test_textbook_size_tables_agree_with_the_law() -> None:
    _, log_weights = parameters(7, 4)
    law = FisherHypergeometric(7, log_weights)
    terms, tables = textbook.size_tables(7, log_weights)
    for sizes in law.enumerate_support():
        counts = sizes.long()
        remaining = 7 - (counts.cumsum(0) - counts)
        conditionals = torch.stack(
            [
                terms[k, counts[k]]
                + tables[k + 1][remaining[k] - counts[k]]
                - tables[k][remaining[k]]
                for k in range(4)
            ]
        )
        torch.testing.assert_close(conditionals, law.conditional_log_probs(sizes))
        torch.testing.assert_close(textbook.size_log_prob(log_weights, counts), law.log_prob(sizes))


@pytest.mark.parametrize(("num_elements", "num_groups"), [(1, 1), (5, 1), (6, 3), (50, 4)])
def test_textbook_log_prob_and_gradients_agree(num_elements: int, num_groups: int) -> None:
    log_scores, log_weights = parameters(num_elements, num_groups)
    law = RandomPartition(log_scores, log_weights)
    partition = law.sample(generator=torch.Generator().manual_seed(0))
    ours = law.log_prob(partition)
    theirs = textbook.log_prob(log_scores, log_weights, partition)
    torch.testing.assert_close(theirs, ours, rtol=1e-10, atol=1e-10)
    for theirs_grad, ours_grad in zip(
        torch.autograd.grad(theirs, (log_scores, log_weights), materialize_grads=True),
        torch.autograd.grad(ours, (log_scores, log_weights), materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(theirs_grad, ours_grad, rtol=1e-8, atol=1e-8)


def test_textbook_soft_sort_agrees() -> None:
    scores, _ = parameters(12, 2)
    relaxed = textbook.neural_sort(0.7, scores)
    torch.testing.assert_close(relaxed.soft, RelaxedPlackettLuce(0.7, scores, hard=False).mode)
    torch.testing.assert_close(relaxed.hard, RelaxedPlackettLuce(0.7, scores).mode)


def test_textbook_groups_fill_the_ranks_in_turn() -> None:
    sizes = torch.tensor([2, 0, 3])
    assigned = textbook.rank_assignment(torch.nn.functional.one_hot(sizes, 6).double())
    assert assigned.argmax(0).tolist() == [0, 0, 2, 2, 2]
    assert (assigned.sum(0) == 1).all()


@pytest.mark.parametrize("relaxed", [False, True])
def test_textbook_samples_follow_the_law(relaxed: bool) -> None:
    log_scores = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64)
    log_weights = torch.tensor([0.2, -0.2], dtype=torch.float64)
    num_draws = 600
    counts = torch.zeros(8)
    for _ in range(num_draws):
        partition = (
            textbook.rsample(0.5, log_scores, log_weights)
            if relaxed
            else textbook.sample(log_scores, log_weights)
        )
        counts[int(partition.argmax(0) @ torch.tensor([4, 2, 1]))] += 1
    law = RandomPartition(log_scores, log_weights)
    expected = num_draws * law.log_prob(all_assignments(3, 2)).exp()
    assert expected.min() > 5
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    # With 7 degrees of freedom, exceeded with a probability of about 1e-5.
    assert chi_square < 36


def test_textbook_gradients_reach_scores_and_weights() -> None:
    log_scores, log_weights = parameters(6, 3)
    partition = textbook.rsample(0.5, log_scores, log_weights)
    assert torch.equal(partition.sum(0), torch.ones(6, dtype=torch.float64))
    functional = torch.randn(3, 6, dtype=torch.float64)
    for gradient in torch.autograd.grad((partition * functional).sum(), (log_scores, log_weights)):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
