"""Threads of the commands wait politely, unless the user has said how they should wait."""

import os
import subprocess
import sys

import pytest

# What the entry of the command leaves in the environment, seen after an answer without torch.
CODE = """
import os, sys
sys.argv = ["drpm", "--version"]
import drpm.cli
assert os.environ.get("GOMP_SPINCOUNT") == os.environ.get("BEFORE"), "an import changed it"
try:
    drpm.cli.main()
except SystemExit:
    assert "torch" not in sys.modules  # whose threads read the variable when it is imported
    print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "None 3000"),
        ({"GOMP_SPINCOUNT": "7", "BEFORE": "7"}, "None 7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
    ],
)
def test_waiting_threads_spin_briefly(given: dict[str, str], found: str) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "BEFORE")
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env={**kept, **given}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == found
