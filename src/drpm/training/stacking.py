"""Several runs in one program.

Runs that differ in their seed, or in a scalar setting, do the same operations on tensors of the
same shapes. Stacked along a leading axis they cost one run's kernel launches, which on a GPU is
most of what a small model costs.
"""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.program import (
    Augmentation,
    BaseProgram,
    Batch,
    Evaluated,
    Objective,
    Terms,
    make_optimizer,
)
from drpm.training.schedules import Schedule


@final
class StackedProgram(BaseProgram):
    """S models in training at once, each with its own batches and its own noise.

    Arguments:
        models: S models of one architecture, each initialised from its own seed.
        objective: As for one model; it sees one model, one batch and one set of values.
        data: Tensors of examples that all runs share.
        config: The settings that all runs share.
        run_data: Tensors of examples with a leading axis of S, where runs see different data.
        settings: Scalars of shape (S,) that reach the objective beside the schedules.
        schedules: Numbers that change with the step, the same for all runs.
        augment: What is done to each run's batch before the objective sees it.
        devices: Where; by default the CPU. Stacked runs share one device.
        seed: Settles batches and noise, instead of the configuration's.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        objective: Objective,
        data: Mapping[str, Tensor],
        config: TrainingConfig,
        *,
        run_data: Mapping[str, Tensor] | None = None,
        settings: Mapping[str, Tensor] | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        augment: Augmentation | None = None,
        devices: Devices | None = None,
        seed: int | None = None,
    ) -> None:
        if not models:
            raise ValueError("models must hold at least one model, but got none.")
        super().__init__(
            data,
            config,
            run_data=run_data or {},
            runs=len(models),
            schedules=schedules,
            devices=devices,
            seed=seed,
        )
        if self.devices.count > 1:
            raise ConfigError(
                f"devices must be 1 for stacked runs, but got {self.devices.count}: "
                "spread the runs over the devices instead."
            )
        self.settings = {name: self.adapt(x) for name, x in (settings or {}).items()}
        for name, values in self.settings.items():
            if values.shape != self._shape:
                raise ValueError(
                    f"settings[{name!r}] must have the shape {self._shape}, a number for each "
                    f"run, but got {tuple(values.shape)}."
                )
        parameters, buffers = stack_module_state([self.adapt_model(model) for model in models])
        needed = {name for name, p in models[0].named_parameters() if p.requires_grad}
        self._trained = {
            name: p.detach().clone().requires_grad_()
            for name, p in parameters.items()
            if name in needed
        }
        self._fixed = {name: p.detach() for name, p in parameters.items() if name not in needed}
        # Buffers too: a batch norm's statistics change in place.
        self._fixed |= {name: buffer.clone() for name, buffer in buffers.items()}
        self.optimizer = make_optimizer(list(self._trained.values()), config, self.device)
        # The first model lends its structure; its own tensors take no part.
        self._template = models[0]
        self._evaluated = Evaluated(models[0], objective, augment, self.generator)
        self._gradients = vmap(
            grad(self._loss, has_aux=True), in_dims=(0, 0, 0, 0, None), randomness="different"
        )

    def tensors(self) -> dict[str, Tensor]:
        return self._trained | self._fixed

    def model_state(self, run: int = 0) -> dict[str, Tensor]:
        stacked = self.tensors()
        own = dict(self._template.named_parameters()) | dict(self._template.named_buffers())
        # By identity, because tied tensors have several names in a state and one in the stack.
        names = {id(tensor): name for name, tensor in own.items()}
        state = self._template.state_dict(keep_vars=True)
        return {name: stacked[names[id(x)]][run].detach() for name, x in state.items()}

    def _loss(
        self,
        trained: dict[str, Tensor],
        fixed: dict[str, Tensor],
        batch: Batch,
        settings: dict[str, Tensor],
        schedule: Mapping[str, Tensor],
    ) -> tuple[Tensor, Terms]:
        """The loss of one run, as a function of its parameters."""
        tensors = {f"model.{name}": x for name, x in (trained | fixed).items()}
        terms: Terms = functional_call(self._evaluated, tensors, (batch, {**schedule, **settings}))
        return terms["loss"], terms

    def _differentiate(self, batch: Batch, schedule: Mapping[str, Tensor]) -> Terms:
        gradients, terms = self._find_gradients(batch, schedule)
        for name, parameter in self._trained.items():
            # Compiled, they are views. A compiled optimiser would look into what each is a view
            # of, and take longer to compile for that than for all else.
            parameter.grad = gradients[name].detach()
        return terms

    def _find_gradients(
        self, batch: Batch, schedule: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Terms]:
        """The gradients of all parameters, which nothing is done with yet, and the terms."""
        # torch.func records what it needs by itself; autograd need not keep a second graph.
        with torch.no_grad():
            gradients, terms = self._gradients(
                self._trained, self._fixed, batch, self.settings, schedule
            )
        # A slice of a larger gradient has strides that no fused optimiser takes. (Compiled with
        # padded products they may have such strides again.)
        return {name: x.contiguous() for name, x in gradients.items()}, dict(terms)

    def _clip(self, limit: float) -> None:
        gradients = [p.grad for p in self._trained.values() if p.grad is not None]
        squares = [g.flatten(1).square().sum(1) for g in gradients]
        # The same formula as torch's `clip_grad_norm_`.
        scale = (limit / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp_max(1.0)
        for gradient in gradients:
            gradient.mul_(scale.reshape(-1, *(1,) * (gradient.dim() - 1)))
