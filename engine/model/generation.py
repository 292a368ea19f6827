"""generation_config.json: how its authors sample the model, and which tokens end a text. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..folder import JsonObject, read_eos_ids, read_json

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a request is sampled with where its client names nothing. None: the file says nothing either."""

    temperature: float | None = None  # 0 is greedy
    top_k: int | None = None  # 0: all of the vocabulary
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: frozenset[int] = frozenset()  # as of read_eos_ids


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """The defaults of `folder`; nothing but the end-of-sequence ids when it has no generation_config.json.

    `do_sample` false means greedy, whatever temperature stands next to it; where it is absent the file is
    silent on sampling, as the files are that transformers writes for a model that never had one. Raises
    CheckpointError
    for a value of the wrong type or out of bounds.
    """
    eos_ids = read_eos_ids(folder)
    if not (folder / "generation_config.json").exists():
        return GenerationDefaults(eos_ids=eos_ids)
    file = read_json(folder / "generation_config.json")
    temperature = optional_number(file, "temperature", at_least=0.0)
    return GenerationDefaults(
        temperature=temperature if file.flag("do_sample", default=True) else 0.0,
        top_k=file.integer("top_k", at_least=0) if file.has("top_k") else None,
        top_p=optional_number(file, "top_p", above=0.0, at_most=1.0),
        min_p=optional_number(file, "min_p", at_least=0.0, at_most=1.0),
        repetition_penalty=optional_number(file, "repetition_penalty", at_least=0.01, at_most=100.0),
        eos_ids=eos_ids,
    )


def optional_number(file: JsonObject, key: str, **bounds: float) -> float | None:
    return file.number(key, **bounds) if file.has(key) else None
