"""A trained network with several tasks."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from drpm.multitask.config import MultitaskConfig
from drpm.multitask.evaluation import evaluate_in_batches
from drpm.multitask.models import MultitaskNetwork
from drpm.multitask.tasks import pixel_bytes
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.errors import RunError
from drpm.training.torch_state import unseeded


@dataclass(frozen=True)
class FittedMultitask:
    """A trained network, in evaluation mode.

    Args:
        network: The network.
        shape: Of an image: C, H and W.
        tasks: Their names.
        classes: Number of classes of each task.
    """

    network: MultitaskNetwork
    shape: tuple[int, int, int]
    tasks: tuple[str, ...]
    classes: tuple[int, ...]

    @property
    def config(self) -> MultitaskConfig:
        return self.network.config

    @property
    def device(self) -> torch.device:
        return self.network.mean.device

    def predict(self, images: Tensor) -> Tensor:
        """The class of every image for every task, (N, T).

        Args:
            images: (N, C, H, W), bytes, or floats in [0, 1].
        """
        batches = evaluate_in_batches(self.network, self._checked(images))
        return torch.cat([outputs.logits.argmax(-1).T for outputs in batches])

    def predict_proba(self, images: Tensor) -> dict[str, Tensor]:
        """From a task to the probabilities of its classes, (N, classes).

        Args:
            images: (N, C, H, W), bytes, or floats in [0, 1].
        """
        batches = evaluate_in_batches(self.network, self._checked(images))
        found = torch.cat([outputs.logits.softmax(-1) for outputs in batches], 1)
        named = zip(self.tasks, self.classes, found, strict=True)
        return {task: each[:, :count] for task, count, each in named}

    def sizes(self, images: Tensor) -> Tensor:
        """The number of neurons of each task for every image, (N, T).

        Args:
            images: (N, C, H, W), bytes, or floats in [0, 1].
        """
        found = []
        for outputs in evaluate_in_batches(self.network, self._checked(images)):
            if outputs.shared.sizes is None:
                raise ValueError(
                    "sizes must be asked of a network whose method is 'drpm', "
                    f"but got {self.config.method!r}: all of its tasks have all neurons."
                )
            found.append(outputs.shared.sizes)
        return torch.cat(found)

    def _checked(self, images: Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            raise ValueError(f"images must be a tensor, but got {type(images).__name__}.")
        known = images.dtype == torch.uint8 or images.is_floating_point()
        if not known or images.dim() != 4 or images.shape[1:] != self.shape or len(images) == 0:
            raise ValueError(
                "images must be bytes, or floats in [0, 1], of the shape "
                f"(N, {', '.join(map(str, self.shape))}), "
                f"but got {images.dtype} of the shape {tuple(images.shape)}."
            )
        if images.dtype == torch.uint8:
            return images
        # As bytes, like the training images.
        return pixel_bytes(images, "images that are floats")

    def to(self, device: torch.device | str) -> "FittedMultitask":
        """A copy on another device."""
        return replace(self, network=copy.deepcopy(self.network).to(device))

    def save(self, folder: Path | str) -> None:
        """Save to a folder, as safetensors and JSON."""
        tensors = {name: x.contiguous() for name, x in self.network.state_dict().items()}
        description = {
            "kind": "multitask",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
            "tasks": list(self.tasks),
            "classes": list(self.classes),
        }
        save_model(Path(folder), tensors, description)


def load_multitask(folder: Path | str, device: torch.device | str = "cpu") -> FittedMultitask:
    """Load what :meth:`FittedMultitask.save` wrote; nothing is unpickled."""
    tensors, description = load_model(Path(folder))
    if description.get("kind") != "multitask":
        raise RunError(
            f"The folder {folder} holds another kind of model than one of several tasks."
        )
    colours, height, width = description["shape"]
    shape, classes = (colours, height, width), tuple(description["classes"])
    config = configs.loads(MultitaskConfig, description["config"])
    with unseeded():
        network = MultitaskNetwork(shape, classes, config)
    load_modules(folder, tensors, {"": network})
    return FittedMultitask(network.eval().to(device), shape, tuple(description["tasks"]), classes)
