"""Several runs in one program.

Runs that differ only in their seed apply the same operations to tensors of the same shapes.
``torch.func.vmap`` stacks them along a leading dimension, so that they need as many kernel launches
as one run, which is most of the cost of a small model on a GPU.
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
    LossModule,
    Objective,
    Terms,
    make_optimizer,
)
from drpm.training.schedules import Schedule


@final
class StackedProgram(BaseProgram):
    """S models in training at once, each with its own batches and noise.

    Args:
        models: S models of one architecture, each initialized from its own seed.
        objective: As for one model; it sees one model and one batch.
        data: Tensors of examples that all runs share.
        config: Training settings that all runs share; its seed determines batches and noise.
        run_data: Tensors of examples with a leading dimension of S, for data that differ by run.
        schedules: Schedules by the names that the objective looks up.
        augment: Applied to each run's batch before the objective.
        devices: Where to train; by default the CPU. Stacked runs share one device.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        objective: Objective,
        data: Mapping[str, Tensor],
        config: TrainingConfig,
        *,
        run_data: Mapping[str, Tensor] | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        augment: Augmentation | None = None,
        devices: Devices | None = None,
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
        )
        if self.devices.count > 1:
            raise ConfigError(
                f"devices must be 1 for stacked runs, but got {self.devices.count}: "
                "spread the runs over the devices instead."
            )
        parameters, buffers = stack_module_state([self.adapt_model(model) for model in models])
        needed = {name for name, p in models[0].named_parameters() if p.requires_grad}
        self._trained = {
            name: p.detach().clone().requires_grad_()
            for name, p in parameters.items()
            if name in needed
        }
        self._fixed = {name: p.detach() for name, p in parameters.items() if name not in needed}
        # Buffers as well: batch norm changes its statistics in place.
        self._fixed |= {name: buffer.clone() for name, buffer in buffers.items()}
        self.optimizer = make_optimizer(list(self._trained.values()), config, self.device)
        # Only the structure of the first model is used, not its tensors.
        self._template = models[0]
        self._loss_module = LossModule(models[0], objective, augment, self.generator)
        self._gradients = vmap(
            grad(self._loss, has_aux=True), in_dims=(0, 0, 0, None), randomness="different"
        )

    def tensors(self) -> dict[str, Tensor]:
        return self._trained | self._fixed

    def model_state(self, run: int = 0) -> dict[str, Tensor]:
        stacked = self.tensors()
        own = dict(self._template.named_parameters()) | dict(self._template.named_buffers())
        # By identity: tied tensors have several names in a state_dict and one in the stack.
        names = {id(tensor): name for name, tensor in own.items()}
        state = self._template.state_dict(keep_vars=True)
        return {name: stacked[names[id(x)]][run].detach() for name, x in state.items()}

    def _loss(
        self,
        trained: dict[str, Tensor],
        fixed: dict[str, Tensor],
        batch: Batch,
        schedule: Mapping[str, Tensor],
    ) -> tuple[Tensor, Terms]:
        """The loss of one run as a function of its parameters."""
        tensors = {f"model.{name}": x for name, x in (trained | fixed).items()}
        terms: Terms = functional_call(self._loss_module, tensors, (batch, dict(schedule)))
        return terms["loss"], terms

    def _differentiate(self, batch: Batch, schedule: Mapping[str, Tensor]) -> Terms:
        gradients, terms = self._find_gradients(batch, schedule)
        for name, parameter in self._trained.items():
            # Compiled gradients are views, whose bases would slow down compiling the optimizer.
            parameter.grad = gradients[name].detach()
        return terms

    def _find_gradients(
        self, batch: Batch, schedule: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Terms]:
        """The gradients of all parameters, and the terms."""
        # torch.func records its own graph.
        with torch.no_grad():
            gradients, terms = self._gradients(self._trained, self._fixed, batch, schedule)
        # Fused optimizers refuse the strides of a slice of a larger gradient.
        return {name: x.contiguous() for name, x in gradients.items()}, dict(terms)

    def _clip(self, limit: float) -> None:
        gradients = [p.grad for p in self._trained.values() if p.grad is not None]
        squares = [g.flatten(1).square().sum(1) for g in gradients]
        # The formula of torch's `clip_grad_norm_`.
        scale = (limit / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp_max(1.0)
        for gradient in gradients:
            gradient.mul_(scale.reshape(-1, *(1,) * (gradient.dim() - 1)))
