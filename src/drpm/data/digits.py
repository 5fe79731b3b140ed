"""The handwritten digits that come with scikit-learn: small, and always available."""

import numpy as np
import torch

from drpm.data.types import Dataset, Split

CLASSES = tuple("0123456789")

_TEST_EVERY = 5


def load() -> Dataset:
    """1,442 training and 355 test images, (1, 8, 8) in [0, 1]; the target ``label``.

    The data has no official split; we use a fixed one: every fifth image of each digit, in
    scikit-learn's order, is a test image.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    # Counted per digit: the data begins with digits in a fixed cycle.
    of_digit = labels.unsqueeze(1) == torch.arange(len(CLASSES))
    rank = (of_digit.cumsum(0) * of_digit).sum(1)
    is_test = rank % _TEST_EVERY == 0
    train = Split(images[~is_test], {"label": labels[~is_test]})
    test = Split(images[is_test], {"label": labels[is_test]})
    return Dataset("digits", train, test, classes={"label": CLASSES})
