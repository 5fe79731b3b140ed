"""Training in two processes: python -m tests.training.two_ranks FOLDER; the second one is started
by the first. Each writes what it found to rank-N.json, for the test to judge."""

import atexit
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drpm.training.config import dumps
from drpm.training.devices import Devices, connect, matmul_precision
from drpm.training.errors import Interrupted, RunError
from drpm.training.loop import train
from drpm.training.program import Program
from drpm.training.runs import RunFolder, open_run
from tests.training.toys import copied, make_model, noisy_squares, points, same, settings

CONFIG = settings(devices=2, device="cpu", batch_size=4, epochs=4, log_every=1)


def make(devices: Devices, objective: Any = noisy_squares, **changes: Any) -> Program:
    return Program(make_model(), objective, points(), replace(CONFIG, **changes), devices=devices)


def epoch(devices: Devices, **changes: Any) -> list[list[int]]:
    program = make(devices, **changes)
    program.shuffle()
    batches: list[list[int]] = program.order.tolist()
    return batches


def gradient_is_the_mean(devices: Devices) -> bool:
    """The gradient after one step against that of each rank on its own."""
    shared, alone = make(devices), Program(make_model(), noisy_squares, points(), CONFIG)
    shared.shuffle()
    alone.order[0] = shared.order[0]
    alone.generator.set_state(shared.generator.get_state())
    for program in (shared, alone):
        program.step()
    expected = [torch.stack(devices.gather(p.grad)).mean(0) for p in alone.model.parameters()]
    found = [p.grad for p in shared.model.parameters()]
    return all(torch.allclose(f, e) for f, e in zip(found, expected, strict=True))


def report(folder: Path, devices: Devices) -> dict[str, Any]:
    def start(name: str) -> RunFolder:
        return open_run(folder / name, dumps(CONFIG), devices=devices)

    found: dict[str, Any] = {"rank": devices.rank, "count": devices.count}
    found["gradient"] = gradient_is_the_mean(devices)

    found["batches"] = epoch(devices)
    found["filled"] = epoch(devices, batch_size=12, drop_last=False)
    found["large"] = epoch(devices, batch_size=1000)
    found["noise"] = torch.rand(4, generator=make(devices).generator).tolist()
    whole = make(devices)
    train(whole, [start("whole")])
    found["parameters"] = [p.tolist() for p in whole.model.parameters()]

    # A signal to the second process alone stops both, after the same step.
    calls = []

    def objective(*arguments: Any) -> dict[str, Tensor]:
        calls.append(1)
        if devices.rank == 1 and len(calls) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return noisy_squares(*arguments)

    run = start("cut")
    try:
        train(make(devices, objective), [run])
    except Interrupted as stopped:
        found["exit_code"], found["stopped_after"] = stopped.exit_code, len(calls)
    resumed = make(devices)
    train(resumed, [run])
    found["resumed"] = same(copied(resumed.tensors()), copied(whole.tensors()))

    # What breaks in one process stops both.
    def broken(*arguments: Any) -> dict[str, Tensor]:
        terms = noisy_squares(*arguments)
        factor = torch.nan if devices.rank == 1 else 1.0
        return {name: term * factor for name, term in terms.items()}

    try:
        train(make(devices, broken), [start("broken")])
    except RunError as error:
        found["complaint"] = str(error)
    try:
        Program(make_model(), noisy_squares, points(), CONFIG).load_state(whole.state())
    except RunError as error:
        found["other_count"] = str(error)
    return found


def precisions() -> list[list[str]]:
    """Those of single operations, which a run leaves as they are; they cannot be unset again."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    products.fp32_precision, convolutions.fp32_precision = "tf32", "ieee"
    with matmul_precision("highest"):
        inside = [products.fp32_precision, convolutions.fp32_precision]
    return [inside, [products.fp32_precision, convolutions.fp32_precision]]


def threads() -> list[str]:
    """The names of this process's threads, where the system tells."""
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").glob("*")]


if __name__ == "__main__":
    folder, found = Path(sys.argv[1]), {}
    torch.set_num_threads(1)

    @atexit.register
    def last() -> None:
        """Called after the function that ``connect`` registers."""
        text = json.dumps(found | {"threads": threads()})
        (folder / f"rank-{found['rank']}.json").write_text(text)

    found.update(report(folder, connect(CONFIG)))
    found["precisions"] = precisions()
