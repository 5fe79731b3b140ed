"""The paper's study of supervised partitions as a sweep, for ``drpm reproduce``."""

from drpm.experiments.studies import study_run
from drpm.training.sweeps import Sweep, register

SEEDS = range(5)
DATA = ("mnist", "fashion-mnist")


@register("supervised")
def supervised() -> Sweep:
    """Partitions of batches of MNIST and Fashion-MNIST, learnt from labels (appendix)."""
    runs = []
    for data in DATA:
        preset = f"paper-supervised-{data}"
        runs.append(study_run(f"{data}/drpm", "supervised", preset, SEEDS, options={"data": data}))
    return Sweep("supervised", tuple(runs))
