"""Run the test suite as other machines would: ``make test-anywhere``.

Every cell emulates other processors, numbers of threads, loads or random numbers.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Cell(NamedTuple):
    """One way to run the suite."""

    environment: Mapping[str, str] = MappingProxyType({})
    options: tuple[str, ...] = ()
    busy: int = 0  # processes that do nothing but keep the cores busy


def instructions(aten: str, mkl: str, dnnl: str, openblas: str) -> dict[str, str]:
    torch = {"ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": mkl, "DNNL_MAX_CPU_ISA": dnnl}
    return {**torch, "OPENBLAS_CORETYPE": openblas}  # which NumPy and SciPy use


AVX2 = instructions("avx2", "AVX2", "AVX2", "Haswell")
SSE = instructions("default", "SSE4_2", "SSE41", "Nehalem")

CELLS = {
    "native": Cell(),
    "avx2, 2 threads": Cell(AVX2, ("--threads=2",)),
    "sse, 4 threads": Cell(SSE, ("--threads=4",)),
    "avx2, busy": Cell(AVX2, busy=2),
    "sse, stream 1": Cell(SSE, ("--stream=1",)),
    "stream 2, 2 threads": Cell(options=("--stream=2", "--threads=2")),
}

CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def run(name: str, cell: Cell, options: list[str]) -> bool:
    """Print the failures of a cell and a line that counts; whether all is green."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cell.busy)]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", *cell.options, *options]
    try:
        with tempfile.TemporaryDirectory() as compiled:
            # Code compiled for other instructions must not be found in torch's cache, and threads
            # that wait must not keep the cores from the others.
            own = {"TORCHINDUCTOR_CACHE_DIR": compiled, "OMP_WAIT_POLICY": "passive"}
            environment = {**os.environ, **cell.environment, **own}
            look = [sys.executable, "-c", CAPABILITY]
            used = subprocess.run(look, env=environment, capture_output=True, text=True).stdout
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
    finally:
        for process in load:
            process.kill()
            process.wait()
    report = done.stdout.rstrip().splitlines() or [""]
    if done.returncode:
        print(*report, done.stderr, sep="\n")
    counts = {word: number for number, word in re.findall(r"(\d+) ([a-z]+?)s?\b", report[-1])}
    words = ("passed", "failed", "error", "skipped")
    figures = ", ".join(f"{counts.get(word, 0)} {word}" for word in words)
    print(
        f"{name} (torch uses {used.strip()}): {figures} ({report[-1].rpartition(' in ')[2]})",
        flush=True,
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(epilog="Further options go on to pytest, in one word, as -n4.")
    parser.add_argument("cells", nargs="*", help="names; by default all: " + "; ".join(CELLS))
    parsed, options = parser.parse_known_args()
    if unknown := [name for name in parsed.cells if name not in CELLS]:
        parser.error(f"cells must be among {list(CELLS)}, but got {unknown[0]!r}.")
    green = [run(name, CELLS[name], options) for name in parsed.cells or CELLS]
    return 0 if all(green) else 1


if __name__ == "__main__":
    sys.exit(main())
