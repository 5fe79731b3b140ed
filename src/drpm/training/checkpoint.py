"""Checkpoints and models on disk: tensors as safetensors, everything else as JSON, no pickle.

A checkpoint is a folder that appears under its name in one rename, once all of it is on the disk.
The file ``latest`` lists the folders that count, newest first, and is itself replaced in one
rename, so that at any instant a reader finds the old state or the new one, whole. Checksums tell
a file that was damaged later; the checkpoint before it is kept for that case.
"""

import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from drpm.training.errors import BEGIN_ANEW, RunError, reason

logger = logging.getLogger(__name__)

# Tensors, numbers, strings, booleans and None in dictionaries, lists and tuples, nested at will.
# The alias is not spelled out: invariance would refuse every `dict[str, Tensor]`.
State: TypeAlias = Any

FORMAT: Final = 1
POINTER: Final = "latest"
STATE_FILE: Final = "state.json"
TENSOR_FILE: Final = "state.safetensors"
MODEL_FILE: Final = "model.json"

_NAME = re.compile(r"step-(\d+)(?:-(\d+))?")
_SWEPT = re.compile(r"step-\d+(?:-\d+)?(?:\.tmp)?|\..+\.tmp")

# What every supported version of safetensors can hold.
_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


class Checkpoint(NamedTuple):
    """A saved state and the step it was saved after."""

    state: State
    step: int


class Model(NamedTuple):
    """A model's tensors by name, on the CPU, and what describes it."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]


class _Damaged(Exception):
    """A file that is not what was written; the message is the end of a sentence."""


class _Encoded(NamedTuple):
    structure: Any
    tensors: dict[str, Tensor]


class _Header(NamedTuple):
    """All of a checkpoint but its tensors."""

    step: int
    structure: Any
    tensors: Mapping[str, Any]


# Writing: one rename makes a file or folder appear, after its bytes have reached the disk.


def write_atomic(path: Path, data: bytes) -> None:
    """Put a file in place as a whole: at any instant there is the old one or the new one."""
    # The process id keeps two writers of one file from sharing a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_through(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot do this for folders; there is nothing better to do.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _write_through(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# States: a structure that JSON can hold, and the tensors it refers to by name.


def _encode(state: State) -> _Encoded:
    tensors: dict[str, Tensor] = {}
    # Safetensors keeps the first name for itself; the second would be no name at all.
    taken = {"__metadata__", ""}

    def store(value: Tensor, path: str) -> dict[str, str]:
        if value.layout != torch.strided or value.is_meta or value.dtype not in _DTYPES:
            raise ValueError(
                f"{path or 'state'} must be a dense tensor of real numbers, whole numbers or "
                f"booleans, but got one of type {value.dtype}, layout {value.layout} on the "
                f"device {value.device}."
            )
        # A key that contains a dot can spell another entry's path; the name is only a label.
        name, count = path, 1
        while name in taken:
            count += 1
            name = f"{path}~{count}"
        taken.add(name)
        # A copy of its own: safetensors refuses tensors that share memory, and a view must not
        # drag the rest of its storage along.
        tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"tensor": name}

    def encode(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return store(value, path)
        if isinstance(value, dict):
            pairs = [(key, encode(item, _join(path, key))) for key, item in value.items()]
            if all(type(key) is str for key, _ in pairs):
                return {"dict": dict(pairs)}
            return {"items": [[_encode_scalar(key, f"a key of {path}"), x] for key, x in pairs]}
        if type(value) is list or type(value) is tuple:
            items = [encode(item, _join(path, index)) for index, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        return _encode_scalar(value, path)

    return _Encoded(encode(state, ""), tensors)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _encode_scalar(value: Any, path: str) -> Any:
    # Exact types: a subclass, such as numpy's float64, would come back as something else.
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        # Readers of JSON may round what needs more than 64 bits, and Python limits the digits.
        return value if value.bit_length() < 64 else {"int": hex(value)}
    if type(value) is float:
        # JSON has no infinities, and a NaN has bits that its name does not tell.
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    raise ValueError(
        f"{path or 'state'} must be a tensor, number, string, boolean or None, or a dict, list "
        f"or tuple of them, but got a {type(value).__module__}.{type(value).__qualname__}."
    )


def _decode(structure: Any, tensors: Mapping[str, Tensor]) -> State:
    def decode(node: Any) -> Any:
        if isinstance(node, list):
            return [decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        return decoders[kind](content)

    decoders: dict[str, Callable[[Any], Any]] = {
        "tensor": lambda name: tensors[name],
        "dict": lambda pairs: {key: decode(item) for key, item in pairs.items()},
        "items": lambda pairs: {decode(key): decode(item) for key, item in pairs},
        "tuple": lambda items: tuple(decode(item) for item in items),
        "int": lambda text: int(text, 16),
        "float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    }
    return decode(structure)


# Documents: JSON that carries its own checksum and that of the tensors beside it.


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _document(content: Mapping[str, Any]) -> bytes:
    document = {"sha256": _digest(_canonical(content)), "content": content}
    return json.dumps(document, allow_nan=False, indent=1).encode() + b"\n"


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
        content = document["content"]
        intact = document["sha256"] == _digest(_canonical(content))
    except OSError as error:
        raise _Damaged(f"{path.name} cannot be read because {reason(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Damaged(f"{path.name} is garbled") from error
    if not intact or not isinstance(content, dict):
        raise _Damaged(f"{path.name} does not match its checksum")
    if content.get("format") != FORMAT:
        raise _Damaged(f"{path.name} has a format that this version does not know")
    return content


def _describe_tensors(name: str, data: bytes) -> dict[str, Any]:
    return {"file": name, "bytes": len(data), "sha256": _digest(data)}


def _read_tensors(folder: Path, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    name = expected["file"]
    if Path(name).name != name:
        raise _Damaged("its description names a file elsewhere")
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise _Damaged(f"{name} cannot be read because {reason(error)}") from error
    if len(data) != expected["bytes"] or _digest(data) != expected["sha256"]:
        raise _Damaged(f"{name} does not match its checksum")
    try:
        return tensors_from_bytes(data)
    except SafetensorError as error:
        raise _Damaged(f"{name} is garbled") from error


# Checkpoints.


def save_state(folder: Path, state: State, step: int) -> Path:
    """Save a state, keep the checkpoint before it, and remove older ones.

    Tensors come back on the CPU, contiguous and without gradients; dictionaries of any kind come
    back as plain ones, in their order; everything else comes back as it was, bit for bit.

    Checkpoints of this step or a later one are replaced: a run that saves them again went back to
    an earlier state.

    Arguments:
        folder: Where the checkpoints lie; made where it is missing.
        state: Tensors, numbers, strings, booleans and None, in dictionaries, lists and tuples.
        step: The number of steps taken so far.

    Returns:
        The folder of the new checkpoint.
    """
    encoded = _encode(state)
    tensors = tensors_to_bytes(encoded.tensors)
    content = {
        "format": FORMAT,
        "step": step,
        "tensors": _describe_tensors(TENSOR_FILE, tensors),
        "state": encoded.structure,
    }
    files = {TENSOR_FILE: tensors, STATE_FILE: _document(content)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _commit(folder, files, step)
    except OSError as error:
        with suppress(OSError):
            _sweep(folder, set(_live(folder)))
        raise RunError(
            f"The checkpoint of step {step} was not written, because {reason(error)}; "
            f"{last_good(folder)}."
        ) from error


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is intact, or None where none was ever completed.

    A damaged one is passed over with a line in the log. Where all of them are damaged this is an
    error: starting afresh without a word would throw the run's work away.
    """
    damages = []
    for name in _candidates(folder):
        try:
            header = _read_header(folder / name)
            tensors = _read_tensors(folder / name, header.tensors)
            checkpoint = Checkpoint(_decode(header.structure, tensors), header.step)
        except _Damaged as damage:
            damages.append(f"{name} is damaged ({damage})")
            continue
        if damages:
            logger.warning(
                "In %s %s; step %d is taken instead.", folder, ", ".join(damages), checkpoint.step
            )
        return checkpoint
    if damages:
        raise RunError(
            f"The run has no checkpoint in {folder} that can be used: {', '.join(damages)}; "
            f"{BEGIN_ANEW}."
        )
    return None


def last_good(folder: Path) -> str:
    """Half a sentence that says which checkpoint a run can go on from."""
    for name in _candidates(folder):
        with suppress(_Damaged):
            step = _read_header(folder / name).step
            return f"the last good checkpoint is step {step} in {folder / name}"
    return f"there is no earlier checkpoint in {folder}"


def _commit(folder: Path, files: Mapping[str, bytes], step: int) -> Path:
    live = _live(folder)
    # What a killed process left behind goes first: it may be what fills the disk.
    _sweep(folder, set(live))
    name, count = f"step-{step:06d}", 1
    while name in live:
        count += 1
        name = f"step-{step:06d}-{count}"
    temporary = folder / f"{name}.tmp"
    temporary.mkdir()
    for file, data in files.items():
        _write_through(temporary / file, data)
    sync_folder(temporary)
    os.replace(temporary, folder / name)
    sync_folder(folder)
    # From the next line on it is the new checkpoint that counts.
    kept = [name, *_previous(folder, live, step)]
    write_atomic(folder / POINTER, "".join(f"{entry}\n" for entry in kept).encode())
    _sweep(folder, set(kept))
    return folder / name


def _previous(folder: Path, live: list[str], step: int) -> list[str]:
    """The checkpoint to fall back to: the newest one of an earlier step that looks intact."""
    for name in live:
        with suppress(_Damaged):
            if _read_header(folder / name).step < step:
                return [name]
    return []


def _read_header(folder: Path) -> _Header:
    content = _read_document(folder / STATE_FILE)
    tensors = content["tensors"]
    # The size is looked at here, where it is cheap; the checksum when the tensors are read.
    try:
        size = (folder / tensors["file"]).stat().st_size
    except OSError as error:
        raise _Damaged(f"{tensors['file']} cannot be read because {reason(error)}") from error
    if size != tensors["bytes"]:
        raise _Damaged(f"{tensors['file']} has {size} bytes instead of {tensors['bytes']}")
    return _Header(content["step"], content["state"], tensors)


def _complete(folder: Path) -> list[str]:
    """The names of all checkpoint folders, the latest step first."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)), reverse=True)
    return [path.name for _, path in found if path.is_dir()]


def _live(folder: Path) -> list[str]:
    """The checkpoints that count, newest first."""
    complete = _complete(folder)
    try:
        names = (folder / POINTER).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        names = []
    # Without a usable pointer (the first save was cut short, say) whatever is complete counts.
    return [name for name in names if name in complete] or complete


def _candidates(folder: Path) -> list[str]:
    """What to try when loading: the checkpoints that count, then any other that is complete."""
    live = _live(folder)
    return live + [name for name in _complete(folder) if name not in live]


def _sweep(folder: Path, keep: set[str]) -> None:
    """Remove temporary files and checkpoints that no longer count, and nothing else."""
    for path in folder.iterdir():
        if path.name in keep or not _SWEPT.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# Models.


def _plain(value: Any, path: str) -> Any:
    """The same in JSON's own types; what they cannot hold is refused, not bent to fit."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{index}") for index, item in enumerate(value)]
    if value is None or isinstance(value, str | int) or _is_finite(value):
        return value
    raise ValueError(
        f"{path} must be a finite number, a string, a boolean or None, or a list or a dict with "
        f"string keys of them, but got {value!r}."
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def save_model(folder: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Save a model's tensors and what is needed to build it again.

    Arguments:
        folder: Where ``model.json`` and the safetensors file that it names go.
        tensors: The tensors by name, as of ``state_dict()``.
        description: Finite numbers, strings, booleans and None in dictionaries with string keys,
            lists and tuples; tuples come back as lists.
    """
    encoded = _encode(dict(tensors))
    if encoded.structure != {"dict": {name: {"tensor": name} for name in encoded.tensors}}:
        raise ValueError("tensors must map names to tensors, but got other keys or values.")
    plain = _plain(description, "description")
    data = tensors_to_bytes(encoded.tensors)
    # The name follows from the content, so that new tensors never take the place of those which
    # the old description names; replacing the description is what puts the new model in place.
    name = f"model-{_digest(data)[:12]}.safetensors"
    document = {
        "format": FORMAT,
        "tensors": _describe_tensors(name, data),
        "description": plain,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, data)
        write_atomic(folder / MODEL_FILE, _document(document))
        for path in folder.glob("model-*.safetensors"):
            if path.name != name:
                path.unlink()
    except OSError as error:
        raise RunError(
            f"The model was not written to {folder}, because {reason(error)}."
        ) from error


def load_model(folder: Path) -> Model:
    """Read what :func:`save_model` wrote; nothing is unpickled.

    Arguments:
        folder: The folder that holds ``model.json``.
    """
    if not (folder / MODEL_FILE).is_file():
        raise RunError(f"{folder} holds no model: {MODEL_FILE} is missing.")
    try:
        content = _read_document(folder / MODEL_FILE)
        return Model(_read_tensors(folder, content["tensors"]), content["description"])
    except _Damaged as damage:
        raise RunError(f"The model in {folder} is damaged: {damage}.") from damage


def load_modules(
    folder: Path | str,
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    others: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Give modules what :func:`load_model` read, and refuse tensors that are not theirs.

    Arguments:
        folder: Where that was, for the refusal.
        tensors: All tensors by name.
        modules: By what the names of their tensors begin with, such as ``"head."`` or nothing.
        others: The shapes of the tensors that belong to no module.
    """
    shapes = dict(others or {})
    for prefix, module in modules.items():
        shapes |= {prefix + name: tuple(x.shape) for name, x in module.state_dict().items()}
    for name in sorted(shapes.keys() | tensors.keys()):
        if name not in tensors:
            problem = "is missing"
        elif name not in shapes:
            problem = "belongs to no part of it"
        elif (shape := tuple(tensors[name].shape)) != shapes[name]:
            problem = f"has the shape {shape} instead of {shapes[name]}"
        else:
            continue
        raise RunError(f"The model in {folder} is damaged: the tensor {name} {problem}.")
    for prefix, module in modules.items():
        module.load_state_dict({name: tensors[prefix + name] for name in module.state_dict()})
