"""The device of a run, or of one of several processes.

Torch's matmul precision and default generator are global, so only one thread of a process trains at
a time.
"""

import atexit
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

T = TypeVar("T")


@final
class Devices:
    """The device of this process, and the connection to other processes, if any."""

    def __init__(self, device: torch.device | str = "cpu", fabric: "Fabric | None" = None) -> None:
        self.device = torch.device(device)
        self._fabric = fabric
        self.rank: int = fabric.global_rank if fabric else 0
        self.count: int = fabric.world_size if fabric else 1
        self.is_first = self.rank == 0
        """Whether this is the process that writes files."""

    def share(self, module: nn.Module) -> Callable[..., Any]:
        """The module, with gradients averaged over all processes."""
        return module if self._fabric is None else self._fabric.setup_module(module)

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank; tensors must be on the CPU."""
        values = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all processes."""
        if self._fabric is not None:
            self._fabric.barrier()


def connect(config: TrainingConfig) -> Devices:
    """The devices of a configuration.

    For several devices, this starts the other processes by running the same command again, unless
    ``torchrun`` has started them. Call it before anything is written.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", started)) if started > 1 else config.devices
    device = _find(config.device, here)
    count = max(started, config.devices)
    on_one_card = device.type == "cuda" and count == 1
    if (config.step == "graph" and not on_one_card) or (config.step == "compile" and count > 1):
        raise ConfigError(
            f"step must be 'eager' or 'auto' on {count} x {device}, but got {config.step!r}."
        )
    if started == 1 and config.devices == 1:
        return Devices(device)
    try:
        from lightning.fabric import Fabric
    except ImportError as error:
        raise RunError(
            "Several devices need the package lightning, which is not installed; "
            "install it with: pip install 'drpm[distributed]'."
        ) from error
    # Lightning logs a banner to stderr.
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    nodes = max(1, started // here)
    fabric = Fabric(accelerator=device.type, devices=here, num_nodes=nodes, strategy="ddp")
    fabric.launch()
    atexit.register(_leave)
    return Devices(fabric.device, fabric)


def _leave() -> None:
    """Close the connection, since its threads may crash an exiting process."""
    # Shared modules also hold the connection, in reference cycles.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _find(name: str, count: int) -> torch.device:
    """The device of a name; raise if the machine lacks it, or ``count`` of its kind."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if cards else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device(kind)
    if int(number or 0) >= cards:
        known = f"cpu or one of {cards} GPUs" if cards else "cpu"
        raise ConfigError(f"device must be available on this machine ({known}), but got {name!r}.")
    if number and count > 1:
        raise ConfigError(f"device must be 'cuda' if devices is {count}, but got {name!r}.")
    if count > cards:
        raise ConfigError(f"devices must be at most {cards}, the GPUs here, but got {count}.")
    # With an index, so that it equals the devices of tensors.
    return torch.device(kind, int(number) if number else torch.cuda.current_device())


# Held while training. A CUDA graph cannot be captured while another thread uses the device.
TRAINING_LOCK: Final = threading.RLock()


# Functions that accept a generator in every supported version of torch.
_DRAWS: Final = frozenset(
    getattr(owner, name)
    for owner, names in {
        torch: "bernoulli multinomial normal poisson rand randint randn randperm",
        torch.Tensor: "bernoulli_ cauchy_ exponential_ log_normal_ normal_ random_ uniform_",
        nn.init: "kaiming_uniform_ normal_ uniform_",  # the others call these
    }.items()
    for name in names.split()
)


class seeded(TorchFunctionMode):
    """Initialize modules as after ``torch.manual_seed(seed)``, from a thread-local generator.

    Functions without a ``generator`` argument, such as dropout and ``torch.rand_like``, use the
    default generator.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self._generator}
        return func(*args, **kwargs)


@contextmanager
def matmul_precision(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Compute float32 products on a GPU in float32, or in TF32 for ``high``.

    Precisions set by the user for single operations are kept.
    """
    cudnn: Any = torch.backends.cudnn
    try:
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:  # torch's newer interface is in use and cannot be mixed with this one
        yield
        return
    torch.set_float32_matmul_precision(precision)
    cudnn.allow_tf32 = precision == "high"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]
