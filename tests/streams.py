"""Other random numbers than usual, to find tests whose verdict hangs on the ones they draw.

``pytest --stream 3`` adds a number to every seed that torch and NumPy are given in the test
process. A test may then fail only with the probability that it states.
"""

from typing import Any

import numpy as np
import torch

_STRIDE = 1_000_003  # far from the small seeds that tests count up from


def shift_seeds(stream: int) -> None:
    """Add a number to every seed from here on; stream 0 leaves all as it is."""
    if stream == 0:
        return
    shift = stream * _STRIDE
    seed_torch, make_numpy = torch.manual_seed, np.random.default_rng
    torch_generator: Any = torch.Generator
    numpy_state: Any = np.random.RandomState

    class Generator(torch_generator):
        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed(seed + shift)

    class RandomState(numpy_state):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(seed + shift if isinstance(seed, int) else seed)

    def default_rng(seed: Any = None) -> np.random.Generator:
        return make_numpy(seed + shift if isinstance(seed, int) else seed)

    torch.manual_seed = lambda seed: seed_torch(int(seed) + shift)
    torch.Generator = Generator  # type: ignore[misc]
    np.random.RandomState = RandomState  # type: ignore[misc]
    np.random.default_rng = default_rng
