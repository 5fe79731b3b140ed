"""A finished model of supervised partitions: what it makes of batches."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.preprocessing import scale_shapes, scaled_rows
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.evaluation import PartitionScores, partition_scores, shuffled_batches
from drpm.supervised.models import Partitioner
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.errors import RunError
from drpm.training.torch_state import unseeded

# The same batches for every model and seed.
_BATCHES_SEED = 1_000_000


class PredictedPartition(NamedTuple):
    """A batch in its subsets.

    Arguments:
        subsets: (n,), that of every element.
        sizes: (K,), how many elements every subset holds.
    """

    subsets: Tensor
    sizes: Tensor


class JudgedBatches(NamedTuple):
    """Batches of labelled elements in their subsets.

    Arguments:
        scores: How right that is.
        order: (N,), the elements, batch after batch.
        batch: (N,), the number of the batch of each of them, in that order.
        subsets: (N,), its subset, in that order.
    """

    scores: PartitionScores
    order: Tensor
    batch: Tensor
    subsets: Tensor


@dataclass(frozen=True)
class FittedPartitioner:
    """A trained model.

    Arguments:
        model: The model.
        shape: Of an element.
        shift: (d,) on the CPU, what elements have taken off before the network sees them; none
            where it sees them as they come.
        scale: (d,) on the CPU, what they are then divided by.
    """

    model: Partitioner
    shape: tuple[int, ...]
    shift: Tensor | None = None
    scale: Tensor | None = None

    @property
    def config(self) -> SupervisedConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.size_weight.device

    @torch.no_grad()
    def partition(self, elements: Tensor | NDArray[Any]) -> PredictedPartition:
        """Partition a batch: the likeliest sizes, filled in the likeliest order.

        Arguments:
            elements: (n, *shape), or rows of as many numbers: of a table as its file has them, of
                images as :func:`drpm.data.load` gives them. What is predicted of one depends on
                the others.
        """
        rows = scaled_rows("elements", elements, self.shape, self.shift, self.scale)
        # Pixels of 0 to 255 would be taken for very bright ones.
        if len(self.shape) > 1 and not as_tensor(elements).is_floating_point():
            raise ValueError(
                "elements must be images as drpm.data.load gives them, but got whole numbers."
            )
        if len(rows) == 0:
            raise ValueError("elements must be one or more, but got none.")
        if not rows.isfinite().all():
            raise ValueError("elements must be finite numbers, but some are missing or infinite.")
        rows = rows.to(self.model.size_weight)
        parts = self.model.law(rows).rsample_parts(noise="none")
        return PredictedPartition(parts.Y.argmax(-2), parts.sizes.round().long())

    def judge(
        self, elements: Tensor | NDArray[Any], labels: Tensor | NDArray[Any]
    ) -> JudgedBatches:
        """Partition labelled elements in shuffled batches, each of them once.

        Arguments:
            elements: (N, *shape), as in :meth:`partition`.
            labels: (N,), the class of each.
        """
        elements, labels = as_tensor(elements), as_tensor(labels)
        if len(labels) != len(elements):
            raise ValueError(
                f"labels must be one for each of {len(elements)} elements, but got {len(labels)}."
            )
        batches = shuffled_batches(len(elements), self.config.training.batch_size, _BATCHES_SEED)
        found = [self.partition(elements[rows.to(elements.device)]).subsets for rows in batches]
        order, subsets = torch.cat(batches), torch.cat(found).cpu()
        lengths = torch.tensor([len(rows) for rows in batches])
        batch = torch.arange(len(batches)).repeat_interleave(lengths)
        scores = partition_scores(labels.cpu()[order], subsets, self.model.classes, batch)
        return JudgedBatches(scores, order, batch, subsets)

    def to(self, device: torch.device | str) -> "FittedPartitioner":
        """The same on another device."""
        return replace(self, model=copy.deepcopy(self.model).to(device))

    def save(self, folder: Path | str) -> None:
        """Write it to a folder, as numbers and text."""
        tensors = {name: x.contiguous() for name, x in self.model.state_dict().items()}
        description = {
            "kind": "supervised",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
            "classes": self.model.classes,
        }
        for name, part in (("shift", self.shift), ("scale", self.scale)):
            if part is not None:
                tensors[name] = part.contiguous()
        save_model(Path(folder), tensors, description)


def as_tensor(data: Tensor | NDArray[Any]) -> Tensor:
    """Data as a tensor; an array is copied, because some may only be read."""
    return data if isinstance(data, Tensor) else torch.tensor(data)


def load_partitioner(folder: Path | str, device: torch.device | str = "cpu") -> FittedPartitioner:
    """Read what :meth:`FittedPartitioner.save` wrote; nothing is unpickled."""
    tensors, description = load_model(Path(folder))
    if description.get("kind") != "supervised":
        raise RunError(
            f"The folder {folder} holds another kind of model than one of supervised partitions."
        )
    shape = tuple(description["shape"])
    config = configs.loads(SupervisedConfig, description["config"])
    with unseeded():
        model = Partitioner(torch.Size(shape).numel(), description["classes"], config)
    load_modules(folder, tensors, {"": model}, scale_shapes(tensors, torch.Size(shape).numel()))
    return FittedPartitioner(model.to(device), shape, tensors.get("shift"), tensors.get("scale"))
