"""Which tables the page of results has, and where the figures of each come from."""

from typing import Final

from drpm.clustering import published, sweeps
from drpm.report.result_tables import Place, Row, Table

DATA: Final = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
METHODS: Final = {
    "gmm": "GMM",
    "latent-gmm": "Latent GMM",
    "vade": "VaDE",
    "vade-frozen": "VaDE, frozen encoder",
    "drpm-vc": "DRPM-VC",
    "contrastive-head": "Contrastive head",
}
MAIN: Final = "MNIST and Fashion-MNIST"
VARYING: Final = "Other numbers of clusters"
OBJECTIVES: Final = "Bounds and exact mass"
METRICS: Final = {"nmi": "NMI", "ari": "ARI", "accuracy": "ACC"}


def _by_data(
    sweep: str,
    variant: str,
    figures: published.Published | None = None,
    name: str = "",
    *,
    is_guest: bool = False,
) -> Row:
    paper = () if figures is None else tuple(figures[variant][data] for data in DATA)
    places = tuple(Place(sweep, data, variant) for data in DATA)
    return Row(name or METHODS[variant], places, paper, is_guest)


def tables() -> list[Table]:
    """The tables of the page, whatever there is to fill them with."""
    in_main = ("gmm", "latent-gmm", "vade", "drpm-vc")
    return [
        Table(
            MAIN,
            "Table 1 of the paper (`table-1`). The contrastive head is what pretraining itself "
            "takes for the clusters; the paper does not show it. On Fashion-MNIST the refits of "
            "VaDE go by samples of the codes: by their means, which is one way to read the public "
            "code, they ruined its encoder.",
            "method",
            list(DATA.values()),
            [
                *(_by_data("table-1", name, published.MAIN) for name in in_main),
                _by_data("table-1", "contrastive-head"),
            ],
            METRICS,
        ),
        Table(
            "VaDE in other ways",
            "With the optimiser of DRPM-VC and the encoder frozen, an ablation of the paper; its "
            "refits go by the means of codes, as those of DRPM-VC. With variances that start small "
            "and equal, as those of DRPM-VC, and not as a copy of the means, as the public code "
            "has them: tried on MNIST, where VaDE falls short of the paper. All of it in "
            "`table-1`.",
            "method",
            list(DATA.values()),
            [
                _by_data("table-1", "vade", published.MAIN, is_guest=True),
                _by_data("table-1", "vade-frozen", published.FROZEN),
                _by_data("table-1", "vade-reset", name="VaDE, small variances"),
            ],
            METRICS,
        ),
        Table(
            "Pretraining by reconstruction",
            "All methods after pretraining by reconstruction alone, an ablation of the paper "
            "(`table-reconstruction`).",
            "method",
            list(DATA.values()),
            [
                _by_data("table-reconstruction", name, published.RECONSTRUCTION)
                for name in ("latent-gmm", "vade", "drpm-vc")
            ],
            METRICS,
        ),
        Table(
            OBJECTIVES,
            "DRPM-VC trained with the paper's bounds on the mass of a partition and with the mass "
            "itself, which the paper does not have (`table-1`). Both differ in nothing but the two "
            "terms of the partition; its sizes are the most likely ones in either. Scores have a "
            "gradient in their scale alone, so training differs only in the gradient of that one "
            "number, and in that of the clusters' weights where the exact term of the sizes is "
            "negative, which counts as none.",
            "objective",
            list(DATA.values()),
            [
                _by_data("table-1", "drpm-vc", published.MAIN, "bounds", is_guest=True),
                _by_data("table-1", "drpm-vc-exact", name="exact"),
            ],
            METRICS,
        ),
        Table(
            "Features of STL-10",
            "Features of STL-10 by a ResNet-50, an ablation of the paper (`stl10`). The mixtures "
            "are not in the paper.",
            "method",
            ["STL-10"],
            [
                Row(
                    METHODS[name],
                    (Place("stl10", "stl10", name),),
                    tuple(published.STL10.get(name, {}).values()),
                )
                for name in ("gmm", "latent-gmm", "vade", "drpm-vc")
            ],
            METRICS,
        ),
        Table(
            VARYING,
            f"Fashion-MNIST with K clusters (`clusters`), {len(sweeps.CLUSTERS_SEEDS)} seeds, "
            f"{sweeps.CLUSTERS_EPOCHS} epochs, which is half of what the paper has. "
            "The paper draws these scores for five seeds and prints none of them; there DRPM-VC is "
            "ahead at every K but 20.",
            "clusters",
            [METHODS[name] for name in sweeps.VARYING],
            [
                Row(
                    f"K = {k}",
                    tuple(Place("clusters", f"k-{k}", name) for name in sweeps.VARYING),
                )
                for k in sweeps.CLUSTERS
            ],
            METRICS,
        ),
    ]
