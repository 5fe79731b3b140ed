"""The paper's clustering tables as sweeps of studies, for ``drpm reproduce``."""

from collections.abc import Iterable, Mapping, Sequence

from drpm.experiments.studies import study_run
from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
DATA = ("mnist", "fashion-mnist")

CLUSTERS = range(6, 21, 2)
CLUSTERS_DATA = "fashion-mnist"
CLUSTERS_SEEDS = range(3)
# Half of the paper's; the temperature is constant after 428.
CLUSTERS_EPOCHS = 512

# From the name of a variant to the suffix of its preset; the slowest come last.
MAIN = {
    "gmm": "-gmm",
    "latent-gmm": "-latent-gmm",
    "contrastive-head": "-contrastive-head",
    "drpm-vc": "",
    "vade": "-vade",
}
FROZEN = {"vade-frozen": "-vade-frozen"}
EXACT = {"drpm-vc-exact": ""}
RESET = {"vade-reset": "-vade"}
RECONSTRUCTION = {
    "latent-gmm": "-reconstruction-latent-gmm",
    "vade": "-reconstruction-vade",
    "drpm-vc": "-reconstruction",
}
STL10 = {name: MAIN[name] for name in ("gmm", "latent-gmm", "drpm-vc", "vade")}
VARYING = {name: MAIN[name] for name in ("drpm-vc", "vade", "latent-gmm")}


def studies(
    name: str,
    data: str,
    variants: Mapping[str, str],
    seeds: Iterable[int] = SEEDS,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[SweepRun]:
    """The studies ``name/variant`` of a sweep, which share their pretraining.

    Args:
        name: Their folder in the folder of the sweep.
        data: The data set.
        variants: From the name of a variant to the suffix of its preset.
        seeds: The seeds of every variant.
        settings: Changes to all presets, as ``name=value``.
        options: Options of the data.
    """
    given = {"data": data, **({"options": list(options)} if options else {})}
    return [
        study_run(
            f"{name}/{variant}",
            "cluster",
            f"paper-cluster-{data}{end}",
            list(seeds),
            settings,
            options=given,
            share=True,
        )
        for variant, end in variants.items()
    ]


@register("table-1")
def table_1() -> Sweep:
    """Clustering on MNIST and Fashion-MNIST: DRPM-VC, its baselines, some ablations."""
    runs = []
    for data in DATA:
        # The ablations start from the same pretraining.
        runs += studies(data, data, {**MAIN, **FROZEN})
        runs += studies(data, data, EXACT, settings=("objective=exact",))
    # Where VaDE falls short of the paper.
    runs += studies("mnist", "mnist", RESET, settings=("copy_mean_head=false",))
    return Sweep("table-1", tuple(runs))


@register("table-reconstruction")
def table_reconstruction() -> Sweep:
    """DRPM-VC and its baselines after pretraining by reconstruction alone (appendix)."""
    runs = [run for data in DATA for run in studies(data, data, RECONSTRUCTION)]
    return Sweep("table-reconstruction", tuple(runs))


@register("stl10")
def stl10() -> Sweep:
    """DRPM-VC and its baselines on features of STL-10 by a ResNet-50 (appendix)."""
    # The default network depends on the installed packages.
    options = ("network=resnet50",)
    return Sweep("stl10", tuple(studies("stl10", "stl10", STL10, options=options)))


@register("clusters")
def clusters() -> Sweep:
    """DRPM-VC, VaDE and the latent mixture on Fashion-MNIST with 6 to 20 clusters (appendix)."""
    runs = []
    for count in CLUSTERS:
        settings = (f"clusters={count}", f"training.epochs={CLUSTERS_EPOCHS}")
        runs += studies(f"k-{count}", CLUSTERS_DATA, VARYING, CLUSTERS_SEEDS, settings)
    return Sweep("clusters", tuple(runs))
