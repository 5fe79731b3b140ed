"""The benchmark program runs, and its textbook yardstick computes the same thing as the laws.

Nothing here asserts a time: that is what the program itself reports.
"""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import laws, steps, textbook
from benchmarks.__main__ import main
from benchmarks.laws import DRPM, OPERATIONS, TEXTBOOK, Case, measure, rival
from drpm import RandomPartition
from tests.processes import python


def test_a_quick_run_writes_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The program's own processes share the cores with the other tests.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(laws, "SECONDS_PER_CASE", 0.01)
    arguments = ["--quick", "--device", "cpu", "--sizes", "8", "--groups", "10"]
    main([*arguments, "--operations", "rsample_grad", "--out", str(tmp_path / "new")])
    document = json.loads((tmp_path / "new" / "results.json").read_text())
    measured = [
        (each["case"]["implementation"], each["case"]["num_elements"])
        for each in document["measurements"]
    ]
    assert measured == [("drpm", 8), ("textbook", 8)]
    assert all(each["seconds"] > 0 for each in document["measurements"])
    assert all(each["peak_bytes"] >= 0 for each in document["measurements"])
    assert {"date", "device_name", "torch", "torch_threads"} <= document["environment"].keys()
    output = capsys.readouterr().out
    assert OPERATIONS["rsample_grad"] in output
    assert "results.json" in output


@pytest.mark.parametrize(
    ("operation", "implementation"),
    [(operation, DRPM) for operation in OPERATIONS]
    + [(operation, TEXTBOOK) for operation in OPERATIONS if rival(operation) == TEXTBOOK],
)
def test_every_operation_can_be_measured(
    operation: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "SECONDS_PER_CASE", 0.001)
    measurement = measure(Case(operation, implementation, 8, 3, "cpu"), isolate=False)
    assert measurement.failure is None
    assert measurement.seconds is not None
    assert measurement.seconds > 0
    assert measurement.repeats > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sizes", "8,none"], "expected positive integers separated by commas"),
        (["--groups", "0"], "expected positive integers separated by commas"),
        (["--device", "abacus"], "torch has no device 'abacus' here"),
        (["--out", __file__], "cannot be created"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_training_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("BATCH_SIZE", 4), ("REPEATS", 1), ("ANGLES", 2), ("IMAGE_SIZE", 16)):
        monkeypatch.setattr(steps, name, value)
    main(["--training", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "steps.json").read_text())["steps"]
    assert [entry["model"] for entry in found] == list(steps.SUBJECTS)
    assert all(entry["alone"] > 0 for entry in found)
    assert [entry["model"] for entry in found if entry["stacked"]] == [
        "DRPM-VC",
        "DRPM-VC, affinity",
    ]


@pytest.mark.parametrize(("num_elements", "num_groups"), [(1, 1), (5, 1), (6, 3), (50, 4)])
def test_textbook_log_prob_and_gradients_agree(num_elements: int, num_groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    log_scores, log_weights = (
        torch.randn(count, generator=generator, dtype=torch.float64).requires_grad_()
        for count in (num_elements, num_groups)
    )
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


CLUSTER = "cluster digits --device=cpu --set training.epochs=1 --set pretraining.training.epochs=1"


@pytest.mark.parametrize(("command", "limit"), [("", 12), (CLUSTER, 33)])
def test_a_walk_leads_through_few_modules(tmp_path: Path, command: str, limit: int) -> None:
    """Who reads along has few of them to open: 10 for a draw with its gradient, 32 for a run."""
    out = ["--out", tmp_path / "run"] if command else []
    done = python("-m", "benchmarks.modules", *command.split(), *out)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout.splitlines()[-1].removesuffix(" modules")) <= limit, done.stdout
