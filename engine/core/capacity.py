"""How many KV pages to reserve, from memory measured free, and what the result means for the longest sequence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

MIB = 1 << 20
CARD_SHARE = 0.9  # of a card's free memory: nothing else grows there
HOST_SHARE = 0.5  # of the host's: prompts in flight, the interpreter and other processes live there too


class CapacityError(Exception):
    """The memory does not hold what the settings ask for. The message names both and the flag to turn."""


@dataclass(frozen=True, slots=True)
class Capacity:
    pages: int
    max_model_len: int  # tokens
    bytes: int
    why: str  # how the number of pages came about, for the log


def free_memory(device: torch.device) -> int:
    """Bytes free on the device; on the host no more than this process's control group leaves it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, _control_group_free())


def plan(
    *,
    free: int,
    on_card: bool,
    page_bytes: int,
    page_size: int,
    memory_mib: int | None,
    max_running: int,
    max_len: int | None,
    model_limit: int,
) -> Capacity:
    """Pages for the KV cache. `memory_mib` and `max_len` None mean auto. Raises CapacityError.

    On the host, auto reserves no more than `max_running` sequences of the longest length can fill.
    """
    if max_len is not None and max_len > model_limit:
        raise CapacityError(
            f"model.max_len = {max_len} is more than the {model_limit} tokens that the model was made for"
        )
    longest = max_len or model_limit
    per_sequence = -(-longest // page_size)
    if memory_mib is not None:
        budget, why = memory_mib * MIB, f"cache.memory_mib = {memory_mib}"
        if budget > free:
            raise CapacityError(
                f"cache.memory_mib = {memory_mib} is more than the {free // MIB} MiB measured free"
            )
    else:
        share = CARD_SHARE if on_card else HOST_SHARE
        budget, why = int(free * share), f"{share:.0%} of {free // MIB} MiB measured free"
    pages = budget // page_bytes
    if memory_mib is None and not on_card and pages > max_running * per_sequence:
        pages, why = max_running * per_sequence, f"enough for {max_running} sequences of {longest} tokens"
    if pages < 1:
        raise CapacityError(
            f"one KV page takes {page_bytes} bytes and {budget} are to be had ({why}); "
            "raise cache.memory_mib or lower cache.page_size"
        )
    if pages < per_sequence:
        if max_len is not None:
            raise CapacityError(
                f"{pages} pages of {page_size} tokens ({why}) do not hold one sequence of model.max_len = {max_len}; "
                f"raise cache.memory_mib or lower model.max_len to {pages * page_size}"
            )
        longest = pages * page_size
    return Capacity(pages=pages, max_model_len=longest, bytes=pages * page_bytes, why=why)


def _control_group_free() -> int:
    """What the control group (version 2) of this process leaves it, or all there is where none bounds it."""
    folder = Path("/sys/fs/cgroup")
    try:
        bound = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except OSError:
        return psutil.virtual_memory().total
    return psutil.virtual_memory().total if bound == "max" else max(0, int(bound) - used)
