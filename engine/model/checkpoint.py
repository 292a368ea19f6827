"""The weights of a Hugging Face folder, read by name and by slice, in the dtype and place they serve from."""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING

import torch

from .fp8 import dequantise_rows, scale_shape
from .shards import DTYPES, StoredTensor, named, read_rows, read_shards
from .weights import WeightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .config import ModelConfig

CHUNK_BYTES = 1 << 20  # what is read at once where a conversion or a copy to the device needs a buffer
LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")


def serving_dtype(flag: str, config: ModelConfig) -> torch.dtype:
    """The dtype that model.dtype = `flag` means: "auto" is the dtype as stored."""
    name = config.dtype if flag == "auto" else flag
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


class Checkpoint:
    """A WeightSource over the safetensors files of one folder, single or sharded, experts fused or apart.

    Memory: a tensor's bytes go straight into the returned tensor when it is on the CPU in the stored dtype,
    and through small buffers otherwise; nothing else is held, and no file stays open between two
    calls.
    """

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`progress` is told (bytes read so far, bytes of all that the model needs) after each tensor.

        Raises CheckpointError when the folder's files are missing, damaged, contradictory or of another
        format.
        """
        self._folder = folder
        self._config = config
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._tensors = read_shards(folder)
        self._unread = {
            name: stored.nbytes for name, stored in self._tensors.items() if not self._unneeded(name)
        }
        self._total_bytes = sum(self._unread.values())
        self._read_bytes = 0
        self._asked: set[str] = set()
        # kept: buffers of its own for each tensor would leave a hole in the heap between every two weights
        self._buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8)
        self._float32 = torch.empty(0)

    def _unneeded(self, name: str) -> bool:
        """Whether the model may leave it aside: prediction layers that are not run, buffers that are computed, a tied
        head.
        """
        layer = LAYER.match(name)
        layers = self._config.layers
        run = layers + self.has(f"model.layers.{layers}.eh_proj.weight")
        return (
            (layer is not None and run <= int(layer[1]) < layers + self._config.prediction_layers)
            or name.endswith(".rotary_emb.inv_freq")
            or (name == "lm_head.weight" and self._config.tied_embeddings)
        )

    def has(self, name: str) -> bool:
        return name in self._tensors

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """See WeightSource.get; `rows` has step 1. Raises CheckpointError when a file cannot be read."""
        stored = self._find(name, shape)
        if stored.dtype not in DTYPES:
            raise WeightError(
                f"{stored.file}: {name} is stored as {stored.dtype}; {', '.join(DTYPES)} are served"
            )
        start, stop, step = (rows or slice(None)).indices(shape[0]) if shape else (0, 1, 1)
        if step != 1:
            raise ValueError(f"rows must be a slice of step 1, not {rows}")
        count = max(0, stop - start)
        out = torch.empty((count, *shape[1:]), dtype=dtype or self._dtype, device=self._device)
        if stored.dtype == "F8_E4M3":
            self._read_fp8(name, stored, start, out)
        else:
            self._read(stored, start, out)
        self._mark_read(name, math.prod(out.shape) * DTYPES[stored.dtype].itemsize)
        return out if shape else out.reshape(())

    def _find(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            layer = LAYER.match(name)
            near = [other for other in self._tensors if layer is None or other.startswith(layer[0])]
            close = difflib.get_close_matches(name, near, n=1)
            hint = f"; the nearest is {close[0]}" if close else ""
            raise WeightError(f"{self._folder} holds no {name}, which its config.json calls for{hint}")
        if stored.shape != shape:
            raise WeightError(
                f"{stored.file}: {name} has shape {list(stored.shape)}; config.json calls for {list(shape)}"
            )
        self._asked.add(name)
        return stored

    def _read(self, stored: StoredTensor, start: int, out: torch.Tensor) -> None:
        """Rows start .. start + len(out) into `out`."""
        source = DTYPES[stored.dtype]
        if out.dtype == source and out.device.type == "cpu":
            read_rows(stored, start, start + len(out), out)
            return
        for chunk, first in self._chunks(stored, start, len(out), CHUNK_BYTES):
            out[first : first + len(chunk)].copy_(chunk)

    def _read_fp8(self, name: str, stored: StoredTensor, start: int, out: torch.Tensor) -> None:
        block = self._config.fp8_block
        if block is None or len(stored.shape) != 2:
            raise WeightError(
                f"{stored.file}: {name} is stored as F8_E4M3 with shape {list(stored.shape)}; fp8 is served "
                "for matrices whose config.json gives quantization_config.weight_block_size"
            )
        scale_name = name.removesuffix(".weight") + ".weight_scale_inv"
        wanted = scale_shape(stored.shape, block)
        scale_stored = self._find(scale_name, wanted)
        if scale_stored.dtype not in ("F32", "BF16"):
            raise WeightError(
                f"{scale_stored.file}: {scale_name} is stored as {scale_stored.dtype}, not F32 or BF16"
            )
        scale = torch.empty(wanted, dtype=DTYPES[scale_stored.dtype])
        read_rows(scale_stored, 0, wanted[0], scale)
        self._mark_read(scale_name, scale_stored.nbytes)
        scale = scale.to(torch.float32)
        fp8_bytes = CHUNK_BYTES // 4  # four times as many once they are float32
        for chunk, first in self._chunks(stored, start, len(out), fp8_bytes):
            if self._float32.numel() < chunk.numel():
                self._float32 = torch.empty(chunk.numel())
            dequantised = self._float32[: chunk.numel()].view(chunk.shape)
            dequantise_rows(chunk, scale, block, start + first, dequantised)
            out[first : first + len(chunk)].copy_(dequantised)

    def _chunks(
        self, stored: StoredTensor, start: int, count: int, chunk_bytes: int
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Rows start .. start + count in the stored dtype, some at a time, each with its place after `start`.

        A chunk is valid until the next one is asked for.
        """
        row_bytes = math.prod(stored.shape[1:]) * DTYPES[stored.dtype].itemsize
        rows = min(max(1, chunk_bytes // max(1, row_bytes)), count)
        if self._buffer.nbytes < rows * row_bytes:
            self._buffer = torch.empty(rows * row_bytes, dtype=torch.uint8)
        buffer = self._buffer[: rows * row_bytes].view(DTYPES[stored.dtype]).view(rows, *stored.shape[1:])
        for first in range(0, count, max(1, rows)):
            chunk = buffer[: min(rows, count - first)]
            read_rows(stored, start + first, start + first + len(chunk), chunk)
            yield chunk, first

    def _mark_read(self, name: str, nbytes: int) -> None:
        """Count the bytes towards the progress, each byte of the checkpoint once."""
        if name not in self._unread:
            return
        counted = min(nbytes, self._unread[name])
        self._unread[name] -= counted
        self._read_bytes += counted
        if self._progress is not None:
            self._progress(self._read_bytes, self._total_bytes)

    def finish(self) -> None:
        """See WeightSource.finish: a tensor nobody asked for means that config.json is another model's."""
        extra = [name for name in self._tensors if name not in self._asked and not self._unneeded(name)]
        if extra:
            raise WeightError(
                f"{self._folder} holds tensors that its config.json has no place for: {named(extra)}"
            )
