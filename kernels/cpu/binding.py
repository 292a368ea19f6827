"""The shared library of native/: finding it, and its structures and functions as native/api.h declares them."""

from __future__ import annotations

import ctypes
import functools
import weakref
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

# The order of enum Operation.
RMS_NORM, ADD_RMS_NORM, ROPE, LATENT_WRITE, LINEAR, GATED_MLP, HEADS, EXPAND = range(8)
DECODE, PREFILL, GATE, EXPERTS, PACK, STEP, SAMPLE, NOT_FINITE = range(8, 16)

# The order of enum SectionName: the names of the profiler's tree.
SECTION_NAMES = (
    "mla_attn", "kv_down", "norm_rope", "cache_write", "q_proj", "absorb", "attend", "v_up", "o_proj",
    "moe", "gate", "dispatch", "shared", "experts", "combine", "dense_mlp",
)  # fmt: skip

TYPES = {torch.bfloat16: 0, torch.float32: 1}
BF16, F32, INT8, INT4 = range(4)  # enum Format


class Structure(ctypes.Structure):
    """One with the fields that `_fields_` lists; everything that is not given is zero or null."""

    _fields_: ClassVar  # pyright: ignore[reportIncompatibleVariableOverride]


class Matrix(Structure):
    _fields_ = (
        ("data", c_void_p), ("scales", c_void_p), ("bias", c_void_p),
        ("n", c_int32), ("k", c_int32), ("format", c_int32), ("unused", c_int32),
    )  # fmt: skip


class HeadMatrices(Structure):
    _fields_ = (("first", Matrix), ("stride", c_int64))


class KvUp(Structure):
    _fields_ = (
        ("absorb", HeadMatrices), ("value", HeadMatrices), ("key_rows", c_void_p),
        ("heads", c_int32), ("nope", c_int32), ("rank", c_int32), ("v", c_int32),
    )  # fmt: skip


class Gated(Structure):
    _fields_ = (("gate_up", Matrix), ("down", Matrix))


class Routing(Structure):
    _fields_ = (
        ("gate", c_void_p), ("bias", c_void_p),
        ("experts", c_int32), ("top_k", c_int32), ("groups", c_int32), ("top_groups", c_int32),
        ("softmax", c_int32), ("method", c_int32), ("normalise", c_int32), ("scale", c_float),
    )  # fmt: skip


class Layer(Structure):
    _fields_ = (
        ("attention_norm", c_void_p), ("down", Matrix), ("query_norm", c_void_p), ("query_up", Matrix),
        ("latent_norm", c_void_p), ("kv_up", KvUp), ("out", Matrix), ("mlp_norm", c_void_p),
        ("routing", Routing), ("experts", POINTER(Gated)), ("shared", Gated),
    )  # fmt: skip


class Model(Structure):
    _fields_ = (
        ("type", c_int32), ("layers", c_int32), ("layer", POINTER(Layer)),
        ("hidden", c_int32), ("heads", c_int32), ("rank", c_int32), ("nope", c_int32), ("rope", c_int32),
        ("v", c_int32), ("eps", c_float), ("latent_eps", c_float), ("softmax_scale", c_float),
        ("final_norm", c_void_p),
    )  # fmt: skip


class Rows(Structure):
    _fields_ = (
        ("lengths", POINTER(c_int32)), ("counts", POINTER(c_int32)), ("tables", c_void_p),
        ("stride", c_int64), ("rows", c_int32), ("page_size", c_int32),
    )  # fmt: skip


class Stamp(Structure):
    _fields_ = (("name", c_int32), ("layer", c_int32), ("began", c_int64), ("ended", c_int64))


class RmsNormCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("weight", c_void_p), ("out", c_void_p), ("x_stride", c_int64),
        ("tokens", c_int32), ("n", c_int32), ("x_type", c_int32), ("out_type", c_int32), ("eps", c_float),
    )  # fmt: skip


class AddRmsNormCall(Structure):
    _fields_ = (
        ("residual", c_void_p), ("update", c_void_p), ("weight", c_void_p), ("out", c_void_p),
        ("tokens", c_int32), ("n", c_int32), ("eps", c_float),
    )  # fmt: skip


class RopeCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("turns", c_void_p), ("token_stride", c_int64), ("head_stride", c_int64),
        ("tokens", c_int32), ("heads", c_int32), ("rope", c_int32),
    )  # fmt: skip


class LatentWriteCall(Structure):
    _fields_ = (
        ("kv", c_void_p), ("cache", c_void_p), ("slots", c_void_p), ("weight", c_void_p), ("turns", c_void_p),
        ("kv_stride", c_int64), ("tokens", c_int32), ("rank", c_int32), ("rope", c_int32), ("eps", c_float),
    )  # fmt: skip


class LinearCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("out", c_void_p), ("x_stride", c_int64),
        ("tokens", c_int32), ("unused", c_int32), ("matrix", Matrix),
    )  # fmt: skip


class GatedCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("out", c_void_p), ("workspace", c_void_p),
        ("tokens", c_int32), ("unused", c_int32), ("mlp", Gated),
    )  # fmt: skip


class HeadsCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("out", c_void_p), ("token_stride", c_int64), ("head_stride", c_int64),
        ("tokens", c_int32), ("heads", c_int32), ("matrices", HeadMatrices),
    )  # fmt: skip


class ExpandCall(Structure):
    _fields_ = (
        ("latents", c_void_p), ("keys", c_void_p), ("values", c_void_p), ("workspace", c_void_p),
        ("stride", c_int64), ("tokens", c_int32), ("unused", c_int32), ("up", KvUp),
    )  # fmt: skip


class DecodeCall(Structure):
    _fields_ = (
        ("q", c_void_p), ("cache", c_void_p), ("out", c_void_p), ("workspace", c_void_p),
        ("heads", c_int32), ("rank", c_int32), ("width", c_int32), ("scale", c_float), ("rows", Rows),
    )  # fmt: skip


class PrefillCall(Structure):
    _fields_ = (
        ("q", c_void_p), ("cache", c_void_p), ("keys", c_void_p), ("values", c_void_p), ("out", c_void_p),
        ("workspace", c_void_p), ("q_stride", c_int64),
        ("key_strides", c_int64 * 3), ("value_strides", c_int64 * 3),
        ("heads", c_int32), ("rank", c_int32), ("nope", c_int32), ("rope", c_int32), ("v", c_int32),
        ("scale", c_float), ("rows", Rows),
    )  # fmt: skip


class GateCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("weights", c_void_p), ("indices", c_void_p), ("workspace", c_void_p),
        ("tokens", c_int32), ("hidden", c_int32), ("routing", Routing),
    )  # fmt: skip


class ExpertsCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("weights", c_void_p), ("indices", c_void_p), ("out", c_void_p), ("workspace", c_void_p),
        ("tokens", c_int32), ("hidden", c_int32), ("count", c_int32), ("top_k", c_int32),
        ("experts", POINTER(Gated)), ("shared", Gated),
    )  # fmt: skip


class PackCall(Structure):
    _fields_ = (
        ("weight", c_void_p), ("row_stride", c_int64), ("column_stride", c_int64), ("matrix", Matrix),
    )  # fmt: skip


class StepCall(Structure):
    _fields_ = (
        ("model", Model), ("decode", Rows), ("prompt", Rows), ("slots", c_void_p), ("turns", c_void_p),
        ("caches", POINTER(c_void_p)), ("residual", c_void_p), ("out", c_void_p), ("workspace", c_void_p),
        ("tokens", c_int32), ("decode_tokens", c_int32),
        ("sections", POINTER(Stamp)), ("section_room", c_int32), ("section_count", c_int32),
    )  # fmt: skip


class SampleCall(Structure):
    _fields_ = (
        ("logits", c_void_p), ("temperature", c_void_p), ("min_p", c_void_p), ("top_p", c_void_p),
        ("uniform", c_void_p), ("top_k", c_void_p), ("tokens", c_void_p), ("rows", c_int32), ("vocab", c_int32),
    )  # fmt: skip


class NotFiniteCall(Structure):
    _fields_ = (
        ("x", c_void_p), ("found", c_void_p), ("rows", c_int32), ("n", c_int32),
        ("count", c_int32), ("unused", c_int32),
    )  # fmt: skip


def path_of_library() -> Path | None:
    """Where the installation put the library, if it could build it."""
    return next(iter(sorted(Path(__file__).parent.glob("_native*.so"))), None)


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    path = path_of_library()
    if path is None:
        return "its library was not built: there was no C++ compiler when arc was installed (g++ or clang++)"
    try:
        return _declared(ctypes.CDLL(str(path)))
    except OSError as error:
        return f"its library does not load: {error}"
    except AttributeError as error:  # a name that it does not have
        return f"its library is of another revision, install arc again: {error}"


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.arc_levels.restype = c_char_p
    library.arc_runs.argtypes = [c_int32]
    library.arc_pool_new.restype = c_void_p
    library.arc_pool_delete.argtypes = [c_void_p]
    library.arc_matrix_bytes.argtypes = [c_int32, c_int32, c_int32]
    library.arc_matrix_bytes.restype = c_int64
    library.arc_matrix_scales.argtypes = [c_int32, c_int32, c_int32]
    library.arc_matrix_scales.restype = c_int64
    library.arc_workspace.argtypes = [c_int32, c_int32, c_void_p]
    library.arc_workspace.restype = c_int64
    library.arc_run.argtypes = [c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p]
    library.arc_run.restype = None
    return library


def levels(library: ctypes.CDLL) -> tuple[str, ...]:
    """The instruction sets that the library was built for and this processor has, the fastest first."""
    names = library.arc_levels().decode().split()
    fastest = library.arc_fastest()
    numbers = sorted(range(len(names)), key=lambda number: number != fastest)
    return tuple(names[number] for number in numbers if library.arc_runs(number))


class Team:
    """The library on one instruction set, with threads of its own. Calls release the interpreter's lock.

    A call takes as many threads as torch is set to. Two calls at once are safe; the second one runs on its own thread.
    """

    def __init__(self, library: ctypes.CDLL, level: str) -> None:
        self.level = level
        self._library = library
        self._level = library.arc_levels().decode().split().index(level)
        self._pool: int = library.arc_pool_new()
        # Not at the interpreter's exit, where a thread may still be inside a call: the process takes the threads along.
        weakref.finalize(self, library.arc_pool_delete, self._pool).atexit = False

    def run(self, operation: int, dtype: torch.dtype, call: Structure) -> None:
        threads = torch.get_num_threads()
        self._library.arc_run(self._pool, threads, self._level, TYPES[dtype], operation, ctypes.byref(call))

    def workspace_bytes(self, operation: int, dtype: torch.dtype, call: Structure) -> int:
        return self._library.arc_workspace(operation, TYPES[dtype], ctypes.byref(call))

    def workspace(self, operation: int, dtype: torch.dtype, call: Structure) -> Tensor:
        return torch.empty(self.workspace_bytes(operation, dtype, call), dtype=torch.uint8)

    def matrix_bytes(self, n: int, k: int, form: int) -> int:
        return self._library.arc_matrix_bytes(n, k, form)

    def matrix_scales(self, n: int, k: int, form: int) -> int:
        return self._library.arc_matrix_scales(n, k, form)
