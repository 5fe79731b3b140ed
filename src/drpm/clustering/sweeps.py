"""The paper's clustering tables as sweeps of studies, for ``drpm reproduce``."""

from collections.abc import Iterable, Mapping

from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
DATA = ("mnist", "fashion-mnist")

CLUSTERS = range(6, 21, 2)
CLUSTERS_DATA = "fashion-mnist"
CLUSTERS_SEEDS = range(3)

# From the name of a variant to the end of its preset's name; what takes longest comes last.
MAIN = {
    "gmm": "-gmm",
    "latent-gmm": "-latent-gmm",
    "contrastive-head": "-contrastive-head",
    "drpm-vc": "",
    "vade": "-vade",
}
FROZEN = {"vade-frozen": "-vade-frozen"}
RECONSTRUCTION = {
    "latent-gmm": "-reconstruction-latent-gmm",
    "vade": "-reconstruction-vade",
    "drpm-vc": "-reconstruction",
}
EXACT = {"drpm-vc-exact": ""}
STL10 = {name: MAIN[name] for name in ("gmm", "latent-gmm", "drpm-vc", "vade")}
VARYING = {name: MAIN[name] for name in ("drpm-vc", "vade", "latent-gmm")}


def study(
    name: str,
    data: str,
    variants: Mapping[str, str],
    seeds: Iterable[int] = SEEDS,
    settings: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
) -> SweepRun:
    """One study of a sweep.

    Arguments:
        name: Its folder in that of the sweep.
        data: The data set.
        variants: From the name of a variant to the end of its preset's name.
        seeds: Those of every variant.
        settings: Changes to all presets, as ``name=value``.
        options: Those of the data.
    """
    return SweepRun(
        name,
        "drpm.clustering.study:run_study",
        {
            "data": data,
            "presets": {each: f"paper-cluster-{data}{end}" for each, end in variants.items()},
            "seeds": list(seeds),
            "settings": list(settings),
            # Left out where there are none: what a run was begun with must stay the same.
            **({"options": dict(options)} if options else {}),
        },
    )


@register("table-1")
def table_1() -> Sweep:
    """Clustering on MNIST and Fashion-MNIST: DRPM-VC, its baselines and the contrastive head."""
    return Sweep("table-1", tuple(study(data, data, MAIN) for data in DATA))


@register("table-frozen")
def table_frozen() -> Sweep:
    """VaDE with the encoder frozen (appendix)."""
    return Sweep("table-frozen", tuple(study(data, data, FROZEN) for data in DATA))


@register("table-reconstruction")
def table_reconstruction() -> Sweep:
    """DRPM-VC and its baselines after pretraining by reconstruction alone (appendix)."""
    runs = tuple(study(data, data, RECONSTRUCTION) for data in DATA)
    return Sweep("table-reconstruction", runs)


@register("exact-objective")
def exact_objective() -> Sweep:
    """DRPM-VC with the exact mass in place of the bounds, to compare with table-1."""
    exact = ("objective=exact",)
    runs = tuple(study(data, data, EXACT, settings=exact) for data in DATA)
    return Sweep("exact-objective", runs)


@register("stl10")
def stl10() -> Sweep:
    """DRPM-VC and its baselines on features of STL-10 by a ResNet-50 (appendix)."""
    # Named, because the features of whatever network is at hand would give another table.
    options = {"network": "resnet50"}
    return Sweep("stl10", (study("stl10", "stl10", STL10, options=options),))


@register("clusters")
def clusters() -> Sweep:
    """DRPM-VC, VaDE and the latent mixture on Fashion-MNIST with 6 to 20 clusters (appendix)."""
    runs = tuple(
        study(f"k-{count}", CLUSTERS_DATA, VARYING, CLUSTERS_SEEDS, (f"clusters={count}",))
        for count in CLUSTERS
    )
    return Sweep("clusters", runs)
