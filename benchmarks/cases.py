"""What is measured: the operations, and how each implementation performs them.

Building the law is part of every operation, as it is of every training step: parameters change,
so nothing may be computed in advance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import textbook
from drpm import RandomPartition, RelaxedRandomPartition

# The softest temperature of the usual schedules, and so the most expensive one: the sharper the
# relaxation, the fewer entries of the soft permutation matter.
TEMPERATURE = 1.0

OPERATIONS = {
    "sample": "sample",
    "log_prob": "exact log_prob",
    "log_prob_grad": "exact log_prob with gradients",
    "rsample_grad": "hard rsample with gradients",
}

DRPM = "drpm"
TEXTBOOK = "textbook"
GRAPH = "drpm in a CUDA graph"


@dataclass(frozen=True)
class Case:
    """One thing to measure: an operation by one implementation at one size."""

    operation: str
    implementation: str
    num_elements: int
    num_groups: int
    device: str


class Inputs(NamedTuple):
    """Random parameters, a partition, and a random linear functional of partitions."""

    log_scores: Tensor
    log_weights: Tensor
    partition: Tensor
    functional: Tensor


def prepare(case: Case) -> Callable[[], object]:
    """The operation as a function of nothing; its inputs are already on the device."""
    if case.implementation == GRAPH:
        return _capture(case)
    inputs = _make_inputs(case)
    values = _drpm_values if case.implementation == DRPM else _textbook_values
    value = values(inputs)[case.operation.removesuffix("_grad")]
    return _with_gradients(value, inputs) if _needs_gradients(case) else value


def _needs_gradients(case: Case) -> bool:
    return case.operation.endswith("_grad")


def _make_inputs(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    log_scores = torch.randn(case.num_elements, generator=generator)
    log_weights = 0.5 * torch.randn(case.num_groups, generator=generator)
    functional = torch.randn(case.num_groups, case.num_elements, generator=generator)
    # Any partition will do for log_prob; this one costs nothing to draw. Its sizes follow the
    # weights, so that none of the groups is far from what the law expects.
    labels = torch.multinomial(
        log_weights.softmax(0), case.num_elements, replacement=True, generator=generator
    )
    partition = torch.nn.functional.one_hot(labels, case.num_groups).mT.float()
    return Inputs(
        log_scores.to(case.device).requires_grad_(_needs_gradients(case)),
        log_weights.to(case.device).requires_grad_(_needs_gradients(case)),
        partition.to(case.device),
        functional.to(case.device),
    )


def _drpm_values(inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    log_scores, log_weights, partition, functional = inputs

    def sample() -> Tensor:
        return RandomPartition(log_scores, log_weights).sample()

    def log_prob() -> Tensor:
        return RandomPartition(log_scores, log_weights).log_prob(partition)

    def rsample() -> Tensor:
        law = RelaxedRandomPartition(TEMPERATURE, log_scores, log_weights)
        return (law.rsample() * functional).sum()

    return {"sample": sample, "log_prob": log_prob, "rsample": rsample}


def _textbook_values(inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    log_scores, log_weights, partition, functional = inputs

    def sample() -> Tensor:
        return textbook.sample(log_scores, log_weights)

    def log_prob() -> Tensor:
        return textbook.log_prob(log_scores, log_weights, partition)

    def rsample() -> Tensor:
        return (textbook.rsample(TEMPERATURE, log_scores, log_weights) * functional).sum()

    return {"sample": sample, "log_prob": log_prob, "rsample": rsample}


def _with_gradients(value: Callable[[], Tensor], inputs: Inputs) -> Callable[[], object]:
    parameters = (inputs.log_scores, inputs.log_weights)
    # With a single group nothing depends on the scores; their gradient is then zero, not an error.
    return lambda: torch.autograd.grad(value(), parameters, materialize_grads=True)


def _capture(case: Case) -> Callable[[], object]:
    """The operation recorded once as a CUDA graph, to be replayed without Python's overhead."""
    inputs = _make_inputs(case)

    def rsample() -> Tensor:
        # Checking values waits for the device, which a recording must not do.
        law = RelaxedRandomPartition(
            TEMPERATURE, inputs.log_scores, inputs.log_weights, validate_args=False
        )
        return (law.rsample() * inputs.functional).sum()

    run = _with_gradients(rsample, inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()

    def replay() -> object:
        graph.replay()
        return results

    return replay
