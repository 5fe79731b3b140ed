"""The figures that the paper gives for several tasks, as it prints them."""

from typing import Final

from drpm.multitask.evaluation import BEST_ACCURACY
from drpm.report.result_tables import Figure, Scores

# "tab:app_exp_mtl_celeba", in the appendix: mean and deviation of the accuracy, in percent, on the
# validation part of CelebA. The paper calls attributes T0 to T39, in alphabetical order. The paper
# draws the accuracies of MultiMNIST and prints none of them.
_METHODS: Final = ("uls", "drpm")
_MEANS: Final = {
    10: ((87.8, 0.3), (88.3, 0.1)),
    20: ((90.7, 0.2), (91.1, 0.1)),
    40: ((90.6, 0.1), (90.8, 0.1)),
}
# ULS and DRPM-MTL with 40 tasks, then with 20, then with 10.
_ATTRIBUTES: Final = """\
5_o_Clock_Shadow      92.9 0.6  92.6 0.5  92.4 0.7  93.0 0.2  92.0 0.5  92.4 0.5
Arched_Eyebrows       83.4 0.5  83.8 0.5  83.7 0.6  83.9 0.7  83.8 0.4  83.7 0.2
Attractive            80.6 0.8  80.6 0.3  79.9 0.6  80.1 0.4  80.2 0.5  80.2 0.4
Bags_Under_Eyes       82.8 1.1  83.1 0.4  82.4 0.5  83.0 0.7  81.9 0.8  82.2 0.6
Bald                  98.6 0.1  98.7 0.1  98.6 0.1  98.6 0.1  98.5 0.2  98.5 0.1
Bangs                 95.4 0.1  95.4 0.2  95.2 0.1  95.5 0.0  95.2 0.2  95.3 0.2
Big_Lips              81.6 2.2  84.4 1.2  82.0 1.3  84.4 0.4  80.0 1.4  82.4 0.4
Big_Nose              82.7 0.3  82.6 0.2  82.5 0.1  82.8 0.2  82.0 0.3  82.2 0.2
Black_Hair            90.1 0.8  90.7 0.5  90.1 0.9  91.0 0.4  89.7 0.7  90.7 0.2
Blond_Hair            94.8 0.2  95.0 0.1  94.7 0.2  95.1 0.1  94.6 0.5  95.0 0.2
Blurry                96.0 0.2  95.9 0.1  95.9 0.1  95.9 0.1
Brown_Hair            85.0 0.5  85.0 0.3  84.9 0.1  84.6 0.3
Bushy_Eyebrows        91.6 0.6  92.2 0.1  91.0 0.4  91.6 0.2
Chubby                94.8 0.2  94.8 0.2  94.7 0.1  94.9 0.1
Double_Chin           95.6 0.4  95.7 0.2  95.4 0.3  96.0 0.1
Eyeglasses            99.3 0.1  99.3 0.1  99.2 0.0  99.2 0.1
Goatee                96.2 0.2  96.1 0.1  95.8 0.3  96.0 0.1
Gray_Hair             97.4 0.2  97.5 0.1  97.3 0.3  97.5 0.2
Heavy_Makeup          91.1 0.1  91.3 0.3  91.2 0.3  91.2 0.1
High_Cheekbones       87.1 0.3  87.0 0.5  87.0 0.3  87.3 0.2
Male                  98.6 0.0  98.5 0.1
Mouth_Slightly_Open   93.6 0.1  93.6 0.2
Mustache              96.0 0.1  95.9 0.2
Narrow_Eyes           91.8 0.4  92.6 0.6
No_Beard              95.4 0.2  95.5 0.1
Oval_Face             71.5 1.6  72.9 1.2
Pale_Skin             96.0 0.4  96.4 0.2
Pointy_Nose           74.9 0.5  76.1 0.3
Receding_Hairline     93.5 0.5  94.0 0.3
Rosy_Cheeks           92.8 0.2  93.5 0.2
Sideburns             96.3 0.3  96.1 0.3
Smiling               92.7 0.2  93.0 0.1
Straight_Hair         81.0 0.4  82.1 0.4
Wavy_Hair             83.3 0.2  83.8 0.6
Wearing_Earrings      89.2 0.2  89.3 0.1
Wearing_Hat           98.9 0.0  99.0 0.0
Wearing_Lipstick      91.7 0.1  91.8 0.2
Wearing_Necklace      87.6 0.6  88.1 0.1
Wearing_Necktie       95.5 0.5  95.6 0.2
Young                 87.9 0.1  82.7 3.2
"""


def _figure(mean: float, deviation: float) -> Figure:
    return Figure(round(mean / 100, 5), round(deviation / 100, 5))


def _scores(method: int, tasks: int) -> Scores:
    """All figures of a method, by the names of our own metrics."""
    found = {BEST_ACCURACY: _figure(*_MEANS[tasks][method])}
    column = 4 * sorted(_MEANS, reverse=True).index(tasks) + 2 * method
    for line in _ATTRIBUTES.splitlines()[:tasks]:
        name, *numbers = line.split()
        found[f"{BEST_ACCURACY}_{name}"] = _figure(*map(float, numbers[column : column + 2]))
    return found


# From a method to the number of tasks to its scores.
CELEBA: Final[dict[str, dict[int, Scores]]] = {
    method: {tasks: _scores(index, tasks) for tasks in _MEANS}
    for index, method in enumerate(_METHODS)
}

# The attributes, in the order of the tasks.
CELEBA_TASKS: Final = tuple(line.split()[0] for line in _ATTRIBUTES.splitlines())
