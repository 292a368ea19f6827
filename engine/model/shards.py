"""Which tensors a checkpoint folder holds, and at which bytes of which safetensors file. Reads headers only.

Tensor bytes are read with plain reads into their destination, not through a memory map: the pages of a map
count as the process's own memory until they are unmapped, so that loading would peak at twice the weights,
and a file cut short under a running engine would kill it with SIGBUS instead of failing one read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from ..folder import CheckpointError, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}
NAMED = 5  # names listed in a message before "and n more"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies. Its bytes are contiguous, row-major, in the file's little-endian order."""

    file: Path
    dtype: str  # safetensors' name of it
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


def named(names: Iterable[str]) -> str:
    """The names in order, a few of them spelled out and the rest counted."""
    ordered = sorted(names)
    more = f", and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return ", ".join(ordered[:NAMED]) + more


def read_shards(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder by its name on the hub: fused experts appear as the tensors of each expert.

    Raises CheckpointError for a missing, damaged or contradictory file, and for weights in any other format.
    """
    tensors: dict[str, StoredTensor] = {}
    index = read_index(folder)
    for file in (
        [folder / SINGLE] if index is None else [folder / name for name in sorted(set(index.values()))]
    ):
        held = read_header(file)
        if twice := tensors.keys() & held.keys():
            other = tensors[min(twice)].file
            raise CheckpointError(f"{file} and {other.name} both hold {named(twice)}")
        tensors |= held
    if index is not None:
        absent = [
            name for name, file in index.items() if name not in tensors or tensors[name].file.name != file
        ]
        if absent:
            raise CheckpointError(
                f"{folder / INDEX} places tensors in files that do not hold them: {named(absent)}"
            )
    parts = [part for name, stored in tensors.items() for part in unfused(name, stored)]
    by_name = dict(parts)
    if len(by_name) < len(parts):
        raise CheckpointError(f"{folder} holds the same experts both fused and apart")
    return by_name


def read_index(folder: Path) -> dict[str, str] | None:
    """File name by tensor name for a sharded checkpoint; None for a single file."""
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    if single and index:
        raise CheckpointError(f"{folder} holds both {SINGLE} and {INDEX}; remove the one that is not meant")
    if single:
        return None
    if not index:
        raise CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}{other_weights(folder)}")
    file = read_json(folder / INDEX)
    weight_map = file.object("weight_map")
    if weight_map is None:
        raise file.error("weight_map", "it must map each tensor to its file")
    for name, shard in weight_map.values.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise weight_map.error(name, "it must be the name of a .safetensors file of the same folder")
    absent = {shard for shard in weight_map.values.values() if not (folder / shard).exists()}
    if absent:
        raise CheckpointError(f"{folder / INDEX} names files that are not there: {named(absent)}")
    return weight_map.values


def other_weights(folder: Path) -> str:
    """What the folder holds instead, for the message."""
    if not folder.is_dir():
        return ": it is not a folder"
    files = {entry.name for entry in folder.iterdir()}
    if pickled := {name for name in files if name.endswith((".bin", ".pt", ".pth"))}:
        return f"; {named(pickled)} may be pickles, which run code when read, and are refused; convert them"
    if other := {name for name in files if name.endswith((".safetensors", ".gguf"))}:
        return f", only {named(other)}"
    return ""


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, whose header and length are valid together."""
    try:
        with safe_open(
            file, framework="pt"
        ):  # its opening checks the header, every offset, and the file's length
            pass
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a whole safetensors file: {reason(file, error)}") from error
    header.pop("__metadata__", None)
    return {
        name: StoredTensor(
            file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0], span(entry)
        )
        for name, entry in header.items()
    }


def span(entry: dict[str, list[int]]) -> int:
    first, last = entry["data_offsets"]
    return last - first


def reason(file: Path, error: Exception) -> str:
    try:
        with file.open("rb") as stream:
            pointer = stream.read(64).startswith(b"version https://git-lfs")
    except OSError:
        pointer = False
    return "it is a Git LFS pointer, the weights were not downloaded" if pointer else str(error)


FUSED = re.compile(r"(?P<experts>.+\.mlp\.experts)\.(?P<projection>gate_up_proj|down_proj)")


def unfused(name: str, stored: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    """The tensor itself, or the per-expert tensors of transformers' fused layout.

    Fused, gate_up_proj is [experts, 2 x intermediate, hidden] with gate above up, and down_proj is [experts,
    hidden, intermediate]; row-major, so that each expert's matrices are contiguous in it.
    """
    match = FUSED.fullmatch(name)
    if match is None:
        yield name, stored
        return
    projections = ("gate_proj", "up_proj") if match["projection"] == "gate_up_proj" else ("down_proj",)
    if len(stored.shape) != 3 or stored.shape[1] % len(projections):
        raise CheckpointError(
            f"{stored.file}: {name} has shape {list(stored.shape)}, not that of fused experts"
        )
    experts, rows, columns = stored.shape
    shape = (rows // len(projections), columns)
    nbytes = stored.nbytes // max(1, experts * len(projections))
    for part in range(experts * len(projections)):
        expert, projection = divmod(part, len(projections))
        hub_name = f"{match['experts']}.{expert}.{projections[projection]}.weight"
        yield hub_name, StoredTensor(stored.file, stored.dtype, shape, stored.offset + part * nbytes, nbytes)


def read_rows(stored: StoredTensor, start: int, stop: int, into: torch.Tensor) -> None:
    """Read rows [start, stop) of the first dimension into `into`: on the CPU, contiguous, of the same dtype.

    Raises CheckpointError when the file ends early, or cannot be read.
    """
    row_bytes = stored.nbytes // max(1, math.prod(stored.shape[:1]))
    view = into.reshape(-1).view(torch.uint8).numpy().data
    try:
        with stored.file.open("rb", buffering=0) as stream:
            stream.seek(stored.offset + start * row_bytes)
            while view:
                count = stream.readinto(view)
                if not count:
                    raise CheckpointError(
                        f"{stored.file} ends before its last tensor: it changed while it was read"
                    )
                view = view[count:]
    except OSError as error:
        raise CheckpointError(f"{stored.file} cannot be read: {error.strerror}") from error
