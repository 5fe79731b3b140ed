"""A training step and its state."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from drpm.training.checkpoint import State
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError, RunError

Batch = dict[str, Tensor]
Terms = Mapping[str, Tensor]


Objective = Callable[[Any, Batch, Mapping[str, Tensor], torch.Generator | None], Terms]
"""Maps the model, a batch, the schedules' values and a generator to named scalars.

``"loss"`` is minimized, the others are logged. All noise is drawn from the generator; None means
the default generator of the device, which dropout always uses. Checkpoints have both.
"""

Augmentation = Callable[[Batch, torch.Generator | None], Batch]

Schedule = Callable[[Tensor], Tensor]
"""Maps the number of earlier steps to a scalar, such as a temperature; both float64 tensors."""


@final
@dataclass(frozen=True)
class ExponentialSchedule:
    r"""Exponential decay or growth from ``start`` to ``end`` over ``steps``, then constant.

    .. math:: \tau_t = \max(\tau_{final},\, \tau_{init} \, e^{-r t}), \qquad
        r = -\frac{\log \tau_{final} - \log \tau_{init}}{steps}

    with the minimum instead of the maximum for growth; ``start`` is :math:`\tau_{init}`, ``end``
    :math:`\tau_{final}`.

    Example:
        >>> ExponentialSchedule(start=1.0, end=0.25, steps=100)(torch.tensor(50.0))
        tensor(0.5000)
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: Tensor) -> Tensor:
        rate = -(math.log(self.end) - math.log(self.start)) / self.steps
        value = self.start * torch.exp(-rate * step)
        return value.clamp(max=self.end) if self.end > self.start else value.clamp(min=self.end)


class LossModule(nn.Module):
    """A model and its objective as one module that returns the loss terms.

    ``functional_call`` and DistributedDataParallel then cover every method the objective calls.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        augment: Augmentation | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.augment, self.generator = augment, generator

    def forward(self, batch: Batch, schedule: Mapping[str, Tensor]) -> Terms:
        # torch.compile cannot trace a generator.
        generator = None if torch.compiler.is_compiling() else self.generator
        if self.augment is not None:
            batch = self.augment(batch, generator)
        terms = self.objective(self.model, batch, schedule, generator)
        # Only the loss is differentiated; otherwise compiled code would compute zero gradients.
        return {name: x if name == "loss" else x.detach() for name, x in terms.items()}


def make_optimizer(
    parameters: Sequence[Tensor], config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """The configured optimizer; on CUDA, compatible with CUDA graphs."""
    # On the CPU, foreach is no faster.
    common: dict[str, Any] = {"lr": config.learning_rate, "foreach": False}
    if device.type == "cuda":
        # As a tensor, the learning rate can change between replays of a graph.
        common = {"lr": torch.tensor(config.learning_rate, device=device), "fused": True}
    common["weight_decay"] = config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=config.betas[0], **common)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, betas=config.betas, **common)


class Readings(NamedTuple):
    """Loss terms of successive steps: their names, and values of shape (steps, terms, S)."""

    names: list[str]
    values: Tensor


def count_steps(examples: int, config: TrainingConfig, devices: int = 1) -> int:
    """The number of steps per epoch."""
    batches = examples / (min(config.batch_size, examples) * devices)
    return max(1, math.floor(batches) if config.drop_last else math.ceil(batches))


@final
class Program:
    """Trains one model, or several stacked models with their own batches and noise.

    Runs that differ only in their seed are stacked along a leading dimension S by
    ``torch.func.vmap``. They then need as many kernel launches as one run, which dominate the cost
    of small models on a GPU. A step changes tensors in place and never synchronizes, as a CUDA
    graph requires; it depends only on :meth:`state`.

    Args:
        models: A model, or S models of one architecture, each initialized from its own seed.
            Parameters that do not require gradients are not trained.
        objective: The objective of one model and one batch.
        data: Tensors of examples of equal length, shared by all runs.
        config: Training settings; its seed determines batches and noise.
        run_data: Tensors (S, N, ...) of examples that differ by run.
        schedules: Schedules by name.
        augment: Applied to each run's batch before the objective.
        devices: Where to train; by default the CPU. Stacked runs share one device.
    """

    def __init__(
        self,
        models: nn.Module | Sequence[nn.Module],
        objective: Objective,
        data: Mapping[str, Tensor],
        config: TrainingConfig,
        *,
        run_data: Mapping[str, Tensor] | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        augment: Augmentation | None = None,
        devices: Devices | None = None,
    ) -> None:
        models = [models] if isinstance(models, nn.Module) else models
        self.config = config
        self.devices = devices or Devices()
        self.device = self.devices.device
        self.schedules = dict(schedules or {})
        self.width = len(models)
        """Number of stacked runs."""
        self.is_stacked = self.width > 1
        if self.is_stacked and self.devices.count > 1:
            raise ConfigError(f"devices must be 1 for stacked runs, but got {self.devices.count}.")
        self.data = {name: self._adapt(x) for name, x in data.items()}
        self.run_data = {name: self._adapt(x) for name, x in (run_data or {}).items()}
        lengths = {name: len(x) for name, x in self.data.items()}
        lengths |= {name: x.shape[1] for name, x in self.run_data.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(
                f"data must contain tensors of equal, nonzero length, but got lengths {lengths}."
            )
        self.examples = next(iter(lengths.values()))
        self.batch_size = min(config.batch_size, self.examples)
        self.steps_per_epoch = count_steps(self.examples, config, self.devices.count)
        # Each process has its own noise; the large stride keeps it distinct from nearby seeds.
        self.seed = config.seed + 1_000_003 * self.devices.rank
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        # Steps since the start, and since the start of the epoch.
        self._counters = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.noise = torch.default_generator
        if self.device.type == "cuda":
            self.noise = torch.cuda.default_generators[self._counters.device.index]
        """Torch's default generator of the device, used by dropout and compiled steps."""
        self.step_count, self._cursor = self._counters[0], self._counters[1:]
        shape = (self.width, self.batch_size) if self.is_stacked else (self.batch_size,)
        self.order = self._counters.new_zeros(self.steps_per_epoch, *shape)
        # The terms of every step of the epoch, allocated by the first step.
        self._terms: list[str] = []
        self._history: Tensor | None = None
        self._read = 0
        models = [model.to(self.device) for model in models]
        if config.precision == "64-true":
            models = [model.double() for model in models]
        self.model = models[0]
        """The model; for stacked runs only its structure is used."""
        self._fixed: dict[str, Tensor] = {}
        named = self.model.named_parameters()
        self._trained: dict[str, Tensor] = {name: p for name, p in named if p.requires_grad}
        if self.is_stacked:
            parameters, buffers = stack_module_state(models)
            # Also buffers: batch norm updates its statistics in place.
            stacked = {name: x.detach().clone() for name, x in (parameters | buffers).items()}
            self._fixed = {name: x for name, x in stacked.items() if name not in self._trained}
            self._trained = {name: stacked[name].requires_grad_() for name in self._trained}
        self.optimizer = make_optimizer(list(self._trained.values()), config, self.device)
        self._loss_module = LossModule(self.model, objective, augment, self.generator)
        self._evaluate = self.devices.share(self._loss_module)
        self._gradients = vmap(
            grad(self._loss, has_aux=True), in_dims=(0, 0, 0, None), randomness="different"
        )

    def _adapt(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device; floats to float64 if the precision is ``64-true``."""
        double = self.config.precision == "64-true" and tensor.is_floating_point()
        return tensor.to(self.device, torch.float64 if double else tensor.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model, or of all stacked models."""
        return self._trained | self._fixed if self.is_stacked else self.model.state_dict()

    def model_state(self, run: int = 0) -> dict[str, Tensor]:
        """The ``state_dict`` of one run's model."""
        tensors = self.tensors()
        if not self.is_stacked:
            return tensors
        return {name: tensors[name][run].detach() for name in self.model.state_dict()}

    def shuffle(self) -> None:
        """Start an epoch with a new permutation of the examples for each run.

        The last batch is padded from the start. With several devices all processes call this, and
        each takes its share of every step.
        """
        steps, count, rank = self.steps_per_epoch, self.devices.count, self.devices.rank
        needed = steps * count * self.batch_size
        for run in range(self.width):
            order = torch.randperm(self.examples, device=self.device, generator=self.generator)
            if count > 1:
                order = self.devices.gather(order.cpu())[0]
            order = order.repeat(math.ceil(needed / self.examples))
            rows = order[:needed].reshape(steps, count, self.batch_size)[:, rank]
            self.order.view(steps, self.width, self.batch_size)[:, run] = rows
        self.rewind()

    def rewind(self) -> None:
        """Return to the first batch of the epoch."""
        self._cursor.zero_()
        self._read = 0

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def schedule_values(self) -> dict[str, Tensor]:
        step = self.step_count.double()  # float32 has no integers beyond 2 ** 24
        return {name: schedule(step).float() for name, schedule in self.schedules.items()}

    def batch(self) -> Batch:
        """The next batch: (B, ...), or (S, B, ...) for stacked runs."""
        index = self.order.index_select(0, self._cursor).squeeze(0)
        batch = {
            name: x.index_select(0, index.flatten()).unflatten(0, index.shape)
            for name, x in self.data.items()
        }
        if self.run_data:
            runs = torch.arange(self.width, device=self.device).unsqueeze(1)
            batch |= {name: x[runs, index] for name, x in self.run_data.items()}
        return batch

    def step(self) -> None:
        """Take one optimizer step on the next batch."""
        batch, schedule = self.batch(), self.schedule_values()
        if self.is_stacked:
            gradients, terms = self._find_gradients(batch, schedule)
            for name, parameter in self._trained.items():
                # Compiled gradients are views; their bases would slow down compiling the optimizer.
                parameter.grad = gradients[name].detach()
        else:
            self.optimizer.zero_grad()
            terms = self._evaluate(batch, schedule)
            terms["loss"].backward()
        self.update()
        self._record(terms)
        self._counters.add_(1)

    def _find_gradients(self, batch: Batch, schedule: State) -> tuple[State, Terms]:
        # torch.func records its own graph.
        with torch.no_grad():
            gradients, terms = self._gradients(self._trained, self._fixed, batch, schedule)
        # Fused optimizers refuse the strides of a slice of a larger gradient.
        return {name: x.contiguous() for name, x in gradients.items()}, dict(terms)

    def _loss(
        self, trained: State, fixed: State, batch: Batch, schedule: State
    ) -> tuple[Tensor, Terms]:
        """The loss of one run as a function of its parameters."""
        tensors = {f"model.{name}": x for name, x in (trained | fixed).items()}
        terms: Terms = functional_call(self._loss_module, tensors, (batch, schedule))
        return terms["loss"], terms

    def update(self) -> None:
        """Apply the gradients."""
        self.optimizer.step()

    def _record(self, terms: Terms) -> None:
        if self._history is None:
            self._terms = ["loss", *sorted(name for name in terms if name != "loss")]
        values = torch.stack([terms[name].detach() for name in self._terms])
        if self._history is None:
            self._history = values.new_zeros(self.steps_per_epoch, *values.shape)
        self._history.index_copy_(0, self._cursor, values.unsqueeze(0))

    def readings(self) -> Readings:
        """The terms of the steps of this epoch since the last call; synchronizes the device."""
        start, self._read = self._read, int(self._cursor)
        if self._history is None or start == self._read:
            return Readings(self._terms, torch.zeros(0, len(self._terms), self.width))
        # A copy, because the next epoch overwrites the history.
        values = self._history[start : self._read].to("cpu", torch.float64, copy=True)
        values = torch.stack(self.devices.gather(values)).mean(0)
        return Readings(self._terms, values.reshape(len(values), len(self._terms), -1))

    def state(self) -> State:
        """The complete state; all processes must call this together."""
        own = {
            "generator": self.generator.get_state(),
            "noise": self.noise.get_state(),
            "order": self.order.cpu(),
        }
        groups = {f"ranks.{rank}": each for rank, each in enumerate(self.devices.gather(own))}
        moments = self.optimizer.state_dict()["state"]
        groups |= {f"optimizer.{index}": each for index, each in moments.items()}
        groups["model"] = self.tensors()
        state = {f"{group}.{name}": x for group, each in groups.items() for name, x in each.items()}
        return {**state, "counters": self._counters}

    def load_state(self, state: State) -> None:
        """Restore :meth:`state`, in place for captured graphs; the loop sets the learning rate."""
        started = sum(name.startswith("ranks.") and name.endswith(".order") for name in state)
        before = f"{tuple(state['ranks.0.order'].shape)} on {started}"
        now = f"{tuple(self.order.shape)} on {self.devices.count}"
        if before != now:
            raise RunError(
                f"The run was started with batches of shape {before} devices and can only be "
                f"resumed with those, but got {now}."
            )
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(state[f"model.{name}"])
        self._load_moments(state)
        rank = f"ranks.{self.devices.rank}"
        self.generator.set_state(state[f"{rank}.generator"].cpu())
        self.noise.set_state(state[f"{rank}.noise"].cpu())
        self.order.copy_(state[f"{rank}.order"])
        self._counters.copy_(state["counters"])
        self._read = int(self._cursor)

    def _load_moments(self, state: State) -> None:
        optimizer = self.optimizer.state_dict()
        if not optimizer["state"]:
            saved: dict[int, State] = {}
            for name in (name for name in state if name.startswith("optimizer.")):
                _, index, moment = name.split(".")
                saved.setdefault(int(index), {})[moment] = state[name]
            self.optimizer.load_state_dict({**optimizer, "state": saved})
        for index, moments in optimizer["state"].items():
            for moment, value in moments.items():
                # A moment that was not saved starts at zero.
                value.copy_(state.get(f"optimizer.{index}.{moment}", torch.zeros(())))
