"""The figures that the paper gives for shared and independent factors, as it prints them."""

from typing import Final

from drpm.report.result_tables import Figure, Scores


def _scores(shared: tuple[float, float] | None, independent: tuple[float, float]) -> Scores:
    both = {"shared_accuracy": shared, "independent_accuracy": independent}
    return {name: Figure(*pair) for name, pair in both.items() if pair is not None}


# "tab:exp_ws_downstream_task", in the main text: from a method to the number of shared factors to
# its scores, on mpi3d. With no factor shared there is none to tell.
MAIN: Final[dict[str, dict[int, Scores]]] = {
    "label": {
        0: _scores(None, (0.14, 0.01)),
        1: _scores((0.19, 0.03), (0.16, 0.01)),
        3: _scores((0.10, 0.00), (0.23, 0.01)),
        5: _scores((0.34, 0.00), (0.00, 0.00)),
    },
    "ada": {
        0: _scores(None, (0.12, 0.01)),
        1: _scores((0.19, 0.01), (0.15, 0.01)),
        3: _scores((0.10, 0.03), (0.22, 0.02)),
        5: _scores((0.33, 0.03), (0.00, 0.00)),
    },
    "hg": {
        0: _scores(None, (0.18, 0.01)),
        1: _scores((0.22, 0.05), (0.19, 0.01)),
        3: _scores((0.08, 0.02), (0.28, 0.01)),
        5: _scores((0.28, 0.01), (0.01, 0.00)),
    },
    "drpm": {
        0: _scores(None, (0.26, 0.02)),
        1: _scores((0.39, 0.07), (0.20, 0.01)),
        3: _scores((0.15, 0.01), (0.29, 0.02)),
        5: _scores((0.42, 0.03), (0.01, 0.00)),
    },
}
