"""The figures that the paper gives for several tasks, as it prints them."""

from typing import Final

from drpm.report.result_tables import Figure, Scores

# "tab:app_exp_mtl_celeba", in the appendix: from a method to the number of tasks to the mean of
# their accuracies, on the validation part of CelebA. The paper draws those of MultiMNIST and
# prints none of them.
CELEBA: Final[dict[str, dict[int, Scores]]] = {
    "uls": {
        10: {"accuracy": Figure(0.878, 0.003)},
        20: {"accuracy": Figure(0.907, 0.002)},
        40: {"accuracy": Figure(0.906, 0.001)},
    },
    "drpm": {
        10: {"accuracy": Figure(0.883, 0.001)},
        20: {"accuracy": Figure(0.911, 0.001)},
        40: {"accuracy": Figure(0.908, 0.001)},
    },
}
