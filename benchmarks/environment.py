"""What a reader needs to judge the figures, and how figures are formatted."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import drpm
from drpm.training.runs import git_revision


def describe_environment(device: str) -> dict[str, Any]:
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
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def format_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 1e3 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def format_bytes(number: float) -> str:
    """Three digits and a decimal unit."""
    if number < 1e5:
        return "< 0.1 MB"
    if number < 1e9:
        return f"{_three_digits(number / 1e6)} MB"
    return f"{_three_digits(number / 1e9)} GB"


def _three_digits(value: float) -> str:
    # Not the "g" format, which turns 999.9 into 1e+03.
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"
