"""The figures that the paper gives for its clusterings, as it prints them."""

from typing import Final, TypeAlias

from drpm.report.result_tables import Figure, Scores

Published: TypeAlias = dict[str, dict[str, Scores]]


def _scores(*pairs: tuple[float, float]) -> Scores:
    figures = (Figure(*pair) for pair in pairs)
    return dict(zip(("nmi", "ari", "accuracy"), figures, strict=True))


# From a method to a data set to its scores.

# "tab:cluster_scores", in the main text.
MAIN: Final[Published] = {
    "gmm": {
        "mnist": _scores((0.32, 0.01), (0.22, 0.02), (0.41, 0.01)),
        "fashion-mnist": _scores((0.49, 0.01), (0.33, 0.00), (0.44, 0.01)),
    },
    "latent-gmm": {
        "mnist": _scores((0.86, 0.02), (0.83, 0.06), (0.88, 0.07)),
        "fashion-mnist": _scores((0.60, 0.00), (0.47, 0.01), (0.62, 0.01)),
    },
    "vade": {
        "mnist": _scores((0.84, 0.01), (0.76, 0.05), (0.82, 0.04)),
        "fashion-mnist": _scores((0.56, 0.02), (0.40, 0.04), (0.56, 0.03)),
    },
    "drpm-vc": {
        "mnist": _scores((0.89, 0.01), (0.88, 0.03), (0.94, 0.02)),
        "fashion-mnist": _scores((0.64, 0.00), (0.51, 0.01), (0.65, 0.00)),
    },
}

# "tab:abblation_clustering_freeze_enc", in the appendix; its other rows are those of MAIN.
FROZEN: Final[Published] = {
    "vade-frozen": {
        "mnist": _scores((0.90, 0.02), (0.88, 0.06), (0.92, 0.06)),
        "fashion-mnist": _scores((0.64, 0.01), (0.47, 0.01), (0.59, 0.03)),
    },
}

# "tab:abblation_clustering_rec_pretraining", in the appendix.
RECONSTRUCTION: Final[Published] = {
    "latent-gmm": {
        "mnist": _scores((0.75, 0.00), (0.66, 0.01), (0.75, 0.01)),
        "fashion-mnist": _scores((0.56, 0.02), (0.41, 0.03), (0.57, 0.02)),
    },
    "vade": {
        "mnist": _scores((0.77, 0.02), (0.62, 0.04), (0.69, 0.04)),
        "fashion-mnist": _scores((0.53, 0.07), (0.35, 0.08), (0.47, 0.09)),
    },
    "drpm-vc": {
        "mnist": _scores((0.74, 0.00), (0.67, 0.01), (0.75, 0.02)),
        "fashion-mnist": _scores((0.59, 0.01), (0.47, 0.02), (0.62, 0.01)),
    },
}

# "tab:ablation_stl10", in the appendix.
STL10: Final[Published] = {
    "vade": {"stl10": _scores((0.80, 0.03), (0.76, 0.04), (0.88, 0.02))},
    "drpm-vc": {"stl10": _scores((0.83, 0.01), (0.80, 0.02), (0.91, 0.00))},
}

# The paper draws its scores for other numbers of clusters, and prints none of them.
