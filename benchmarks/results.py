"""The results of one run, as a file."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import drpm
from benchmarks.cases import TEMPERATURE, Case
from benchmarks.growth import Growth, fit_growth
from benchmarks.measure import Measurement
from drpm.training.runs import git_revision


@dataclass(frozen=True)
class Results:
    """Everything a table or a plot needs.

    Arguments:
        device: The device as torch names it, such as ``cuda``.
        environment: The machine, the versions, the date, and the settings.
        measurements: In the order in which they were made.
    """

    device: str
    environment: dict[str, Any]
    measurements: list[Measurement]

    @property
    def device_type(self) -> str:
        return torch.device(self.device).type

    @property
    def growth(self) -> list[Growth]:
        return fit_growth(self.measurements)

    def dumps(self) -> str:
        document = {
            "device": self.device,
            "environment": self.environment,
            "growth": [asdict(growth) for growth in self.growth],
            "measurements": [asdict(measurement) for measurement in self.measurements],
        }
        return json.dumps(document, indent=2) + "\n"

    def write(self, path: Path) -> None:
        path.write_text(self.dumps(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Results":
        document = json.loads(path.read_text(encoding="utf-8"))
        measurements = [
            Measurement(**{**fields, "case": Case(**fields["case"])})
            for fields in document["measurements"]
        ]
        return cls(document["device"], document["environment"], measurements)


def describe_environment(device: str) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    is_cuda = torch.device(device).type == "cuda"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device_name": torch.cuda.get_device_name(device) if is_cuda else _processor_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if is_cuda else None,
        "drpm": drpm.__version__,
        "git_revision": git_revision(),
        "settings": {
            "dtype": "float32",
            "temperature": TEMPERATURE,
            "log_scores": "standard normal",
            "log_weights": "normal with standard deviation 0.5",
            "time": "median over the repeats",
            "memory": (
                "peak allocated on the device beyond the inputs"
                if is_cuda
                else "peak resident memory of a fresh process beyond that before the operation"
            ),
        },
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
