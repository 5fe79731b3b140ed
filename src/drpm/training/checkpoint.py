"""Checkpoints and models on disk: safetensors and JSON, no pickle.

A checkpoint is one safetensors file, written atomically; then the previous one is removed. Its name
has the step and a checksum of its content.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from drpm.training.errors import START_OVER, RunError, sentence

MODEL_FILE: Final = "model.json"
_SUFFIX: Final = ".safetensors"
_CHECKPOINTS: Final = f"step-*{_SUFFIX}"

# Raised for damaged files and model descriptions.
_DAMAGE: Final = (
    *(AttributeError, LookupError, RuntimeError, SafetensorError, TypeError, ValueError),
)

# The state of a training, by name.
State: TypeAlias = dict[str, Tensor]


class Checkpoint(NamedTuple):
    """A saved state, its step, and the names of the stacked runs."""

    state: State
    step: int
    runs: list[str]


class Model(NamedTuple):
    """A model's tensors by name, on the CPU, and its description."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers find the old content or the new."""
    # With the process id, so that two writers do not share a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        # Makes the rename durable; not supported by some network file systems.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    # Copies, because safetensors rejects tensors that share memory.
    own = {
        name: x.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, x in tensors.items()
    }
    return tensors_to_bytes(own, metadata)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors and verify the checksum in the file's name."""
    data = path.read_bytes()
    if path.stem.rpartition("-")[2] != _checksum(data):
        raise RunError(f"{path.name} does not match its checksum")
    return tensors_from_bytes(data)


def save_state(folder: Path, state: State, step: int, runs: Sequence[str] = (".",)) -> None:
    """Save the state of one or more stacked runs, and remove the previous checkpoint."""
    data = _to_bytes(state, {"runs": json.dumps(runs)})
    path = folder / f"step-{step:06d}-{_checksum(data)}{_SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    # Free the disk space of files left by a killed process.
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    write_atomic(path, data)
    for other in folder.glob(_CHECKPOINTS):
        if other != path:
            other.unlink()


def load_latest(folder: Path) -> Checkpoint | None:
    """The latest checkpoint, or None."""
    steps = {int(path.name.split("-")[1]): path for path in folder.glob(_CHECKPOINTS)}
    if not steps:
        return None
    step = max(steps)
    try:
        state = _read_tensors(steps[step])
    except RunError as error:
        raise RunError(f"The checkpoint in {folder} is damaged: {error}; {START_OVER}.") from error
    with safe_open(steps[step], "pt") as file:
        metadata = file.metadata() or {}
    return Checkpoint(state, step, json.loads(metadata.get("runs", '["."]')))


def save_model(folder: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Save a model's tensors, such as its ``state_dict()``, and a description to rebuild it.

    The description must be valid JSON; tuples become lists.
    """
    data = _to_bytes(tensors)
    # With a checksum in the name, new tensors never replace those of the old description.
    name = f"model-{_checksum(data)}{_SUFFIX}"
    document = {"tensors": name, "description": description}
    text = json.dumps(document, allow_nan=False, indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / name, data)
    write_atomic(folder / MODEL_FILE, text.encode())
    for path in folder.glob(f"model-*{_SUFFIX}"):
        if path.name != name:
            path.unlink()


def load_model(folder: Path | str, kind: str | None = None) -> Model:
    """Load a model saved by :func:`save_model`, without pickle; raise if the kind differs."""
    folder = Path(folder)
    if not (folder / MODEL_FILE).is_file():
        raise RunError(f"{folder} contains no model: {MODEL_FILE} is missing.")
    try:
        document = json.loads((folder / MODEL_FILE).read_bytes())
        path = folder / Path(document["tensors"]).name
        model = Model(_read_tensors(path), dict(document["description"]))
    except (*_DAMAGE, OSError) as error:
        why = error if isinstance(error, RunError) else f"{MODEL_FILE} has an unexpected format"
        raise RunError(f"The model in {folder} is damaged: {why}.") from error
    if kind not in (None, found := model.description.get("kind")):
        raise RunError(f"The model in {folder} must be of the kind {kind!r}, but got {found!r}.")
    return model


@contextmanager
def described(folder: Path | str) -> Iterator[None]:
    """Convert errors while building a model from its description to RunErrors."""
    try:
        yield
    except _DAMAGE as error:
        why = f"{MODEL_FILE}: {sentence(error)}"
        raise RunError(f"The model in {folder} is damaged: {why}") from error


def load_modules(
    folder: Path | str,
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    others: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Load tensors from :func:`load_model` into modules; raise if names or shapes differ.

    ``modules`` maps prefixes of tensor names, such as ``"head."`` or ``""``, to modules; ``others``
    are the shapes of tensors outside of modules.
    """
    with described(folder):
        model = {name: torch.empty(shape, device="meta") for name, shape in (others or {}).items()}
    for prefix, module in modules.items():
        model |= {prefix + name: tensor for name, tensor in module.state_dict().items()}
    for name in sorted(model.keys() | tensors.keys()):
        if name not in tensors:
            problem = "is missing"
        elif name not in model:
            problem = "is not part of the model"
        elif (shape := tensors[name].shape) != model[name].shape:
            problem = f"has shape {tuple(shape)} instead of {tuple(model[name].shape)}"
        elif tensors[name].is_floating_point() != model[name].is_floating_point():
            problem = f"has type {tensors[name].dtype}"
        else:
            continue
        raise RunError(f"The model in {folder} is damaged: the tensor {name} {problem}.")
    for prefix, module in modules.items():
        module.load_state_dict({name: tensors[prefix + name] for name in module.state_dict()})
