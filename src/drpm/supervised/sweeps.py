"""The paper's study of supervised partitions as a sweep, for ``drpm reproduce``."""

from drpm.supervised.config import SupervisedConfig
from drpm.training import presets
from drpm.training.studies import digest_settings
from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
DATA = ("mnist", "fashion-mnist")


@register("supervised")
def supervised() -> Sweep:
    """Partitions of batches of MNIST and Fashion-MNIST, learnt from labels (appendix)."""
    runs = []
    for data in DATA:
        preset = f"paper-supervised-{data}"
        arguments = {
            "data": data,
            "preset": preset,
            "seeds": list(SEEDS),
            # So that runs of what the preset once said are not taken for those of today.
            "config": digest_settings(presets.load(SupervisedConfig, preset)),
        }
        runs.append(SweepRun(f"{data}/drpm", "drpm.supervised.study:run_study", arguments))
    return Sweep("supervised", tuple(runs))
