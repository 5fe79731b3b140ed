"""The paper's studies of several tasks, and some of our own."""

from collections.abc import Sequence

from drpm.experiments.studies import study_run
from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
NOISE = tuple(tenths / 10 for tenths in range(10))
ORDER_NOISE = (0.0, 0.6, 0.7, 0.8, 0.9)
TASKS = (10, 20, 40)
PAPER_METHODS = ("uls", "drpm")
METHODS = ("uls", "uncertainty", "gradient", "drpm")
MULTIMNIST = "paper-multitask-multimnist"
MOSAIC = "paper-multitask-mosaic"


def study(
    folder: str,
    data: str,
    method: str,
    preset: str,
    settings: Sequence[str] = (),
    **options: float,
) -> SweepRun:
    """One method with all its seeds; options are fields of the job."""
    settings = [*settings, f"method={method}"]
    given = {"data": data, **options}
    return study_run(folder, "multitask", preset, list(SEEDS), settings, options=given)


@register("noise")
def noise() -> Sweep:
    """Two overlapping digits, the right one ever noisier: DRPM-MTL and ULS."""
    runs = [
        study(f"{method}/noise-{ratio}", "multimnist", method, MULTIMNIST, noise=ratio)
        for method in PAPER_METHODS
        for ratio in NOISE
    ]
    return Sweep("noise", tuple(runs))


@register("noise-order")
def noise_order() -> Sweep:
    """The same two digits, the noisy one first in the partition: is it noise that moves neurons?"""
    order = ["task_order=reversed"]
    runs = [
        study(f"drpm/noise-{ratio}", "multimnist", "drpm", MULTIMNIST, order, noise=ratio)
        for ratio in ORDER_NOISE
    ]
    return Sweep("noise-order", tuple(runs))


@register("mosaic")
def mosaic() -> Sweep:
    """Ten to forty digits in one image, each as noisy as known: DRPM-MTL and three others."""
    runs = [
        study(f"tasks-{tasks}/{method}", "mosaic", method, MOSAIC, tasks=tasks)
        for tasks in TASKS
        for method in METHODS
    ]
    return Sweep("mosaic", tuple(runs))


@register("mosaic-free")
def mosaic_free() -> Sweep:
    """Mosaics without the penalty that keeps shares alike, in another order for every seed."""
    runs = [
        study(
            f"tasks-{tasks}/drpm",
            "mosaic",
            "drpm",
            MOSAIC,
            ["size_penalty=0", "task_order=shuffled"],
            tasks=tasks,
        )
        for tasks in TASKS
    ]
    return Sweep("mosaic-free", tuple(runs))


@register("celeba")
def celeba() -> Sweep:
    """Ten to forty attributes of faces: DRPM-MTL and ULS (appendix)."""
    preset = "paper-multitask-celeba"
    runs = [
        study(f"tasks-{tasks}/{method}", "celeba", method, preset, tasks=tasks)
        for tasks in TASKS
        for method in PAPER_METHODS
    ]
    return Sweep("celeba", tuple(runs))
