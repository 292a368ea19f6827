"""The tokenizer of a folder, against transformers on the same files, and generation_config.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from arc.engine import carried
from arc.engine.folder import CheckpointError, read_eos_ids
from arc.engine.model.generation import GenerationDefaults, read_generation_defaults
from arc.engine.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ..peers.make_checkpoint import byte_level_tokenizer

TEXTS = ["", "hello the rest", "Grüße, 世界! \U0001f600", "a\n\n  b\t", "<s>raw</s>", "\x00\x7f\xa0\xad"]


def write(folder: Path, tokenizer: tokenizers.Tokenizer, **config: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    given_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(given_config | config))
    return folder


def write_json(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, byte_level_tokenizer(1024))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write(tmp_path_factory.mktemp("tokenizer"), byte_level_tokenizer(1024)))


# Encoding and decoding


PROCESSORS = {
    "bos": processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
    "bos and eos": processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    ),
    "none": processors.ByteLevel(trim_offsets=False),
}


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("added", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("add_special", [True, False])
def test_encoding_is_that_of_transformers(
    tmp_path: Path, processor: str, added: dict[str, bool], add_special: bool
) -> None:
    tokenizer = byte_level_tokenizer(1024)
    tokenizer.post_processor = PROCESSORS[processor]
    write(tmp_path, tokenizer, **added)
    ours, theirs = Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, PreTrainedTokenizerFast)
    for text in TEXTS:
        ids = ours.encode(text, add_special=add_special)
        assert ids == theirs.encode(text, add_special_tokens=add_special)
        for skip in (True, False):
            assert ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip)


@given(text=st.text())
@settings(deadline=None)
def test_text_survives(shared: Tokenizer, text: str) -> None:
    ids = shared.encode(text, add_special=False)
    assert shared.decode(ids, skip_special=False) == text
    assert b"".join(shared.token_bytes(id_) for id_ in ids).decode() == text


@given(ids=st.lists(st.integers(0, 1200)))
@settings(deadline=None)
def test_token_bytes_add_up_to_the_text(shared: Tokenizer, ids: list[int]) -> None:
    """Any ids at all, of which some have no token, and some sequences are no Unicode."""
    joined = b"".join(shared.token_bytes(id_) for id_ in ids)
    assert joined.decode("utf-8", "replace") == shared.decode(ids, skip_special=False)


def test_a_lone_surrogate_is_refused(shared: Tokenizer) -> None:
    with pytest.raises(ValueError, match="not valid Unicode at character 2"):
        shared.encode("ab\ud800", add_special=True)


def test_a_prompt_is_never_cut_or_padded(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(1024)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    write(tmp_path, tokenizer)
    assert len(Tokenizer(tmp_path).encode("z" * 30 + "!" * 10, add_special=False)) > 10
    assert len(Tokenizer(tmp_path).encode("!", add_special=False)) == 1


def test_bytes_of_sentencepiece_tokens(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xE4>": 4, "\u2581the": 5, "end": 6, "\u2581": 7}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    read = Tokenizer(write(tmp_path, tokenizer))
    assert [read.token_bytes(id_) for id_ in range(3, 9)] == [b"\n", b"\xe4", b" the", b"end", b" ", b""]
    assert read.token_bytes(1) == b"<s>"
    assert read.token_text(4) == "\ufffd"


def test_vocabulary_and_ends(shared: Tokenizer) -> None:
    assert shared.vocab_size == 1024
    assert shared.bos_id == 0
    assert shared.eos_ids == {1}
    assert shared.token_text(0) == "<s>"
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=True)
    ids = shared.encode("hello the rest", add_special=True)
    assert "".join(stream.step(shared.inner, id_) or "" for id_ in ids) == "hello the rest"


# Files


def test_no_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.load(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(CheckpointError, match=r"only tiktoken\.model"):
        Tokenizer(tmp_path)


def test_load(folder: Path) -> None:
    loaded = Tokenizer.load(folder)
    assert loaded is not None
    assert loaded.encode("the", add_special=False) == Tokenizer(folder).encode("the", add_special=False)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "BPE"}}'])
def test_a_malformed_tokenizer_is_refused(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(folder)


def test_a_tokenizer_without_config_has_no_ends(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer(folder)
    assert tokenizer.bos_id is None
    assert tokenizer.eos_ids == frozenset()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"bos_token": "<begin>"}, "bos_token is .*not a token"),
        ({"eos_token": 3}, "eos_token is 3; it must be a string"),
        ({"bos_token": {"content": 3}}, r"bos_token\.content is 3"),
    ],
)
def test_a_bad_tokenizer_config_is_named(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    write(tmp_path, byte_level_tokenizer(1024), **config)
    with pytest.raises(CheckpointError, match=match):
        Tokenizer(tmp_path)


def test_the_first_file_that_names_ends_counts(folder: Path) -> None:
    assert Tokenizer(folder).eos_ids == {1}
    write_json(folder, "config.json", {"eos_token_id": 5})
    assert Tokenizer(folder).eos_ids == {5}
    write_json(folder, "generation_config.json", {"eos_token_id": None})
    assert Tokenizer(folder).eos_ids == {5}
    write_json(folder, "generation_config.json", {"eos_token_id": [7, 8]})
    assert Tokenizer(folder).eos_ids == {7, 8}
    assert read_eos_ids(folder) == {7, 8}


@pytest.mark.parametrize("value", ["</s>", -1, True, [1, None], 1.0, {"id": 1}])
def test_bad_end_ids_are_named(folder: Path, value: object) -> None:
    write_json(folder, "generation_config.json", {"eos_token_id": value})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is"):
        Tokenizer(folder)


# generation_config.json


def test_generation_defaults(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path) == GenerationDefaults()
    write_json(tmp_path, "config.json", {"eos_token_id": 3})
    assert read_generation_defaults(tmp_path) == GenerationDefaults(eos_ids=frozenset({3}))
    # DeepSeek-V3's own file
    write_json(
        tmp_path,
        "generation_config.json",
        {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 1},
    )
    assert read_generation_defaults(tmp_path) == GenerationDefaults(0.6, None, 0.95, eos_ids=frozenset({1}))
    write_json(
        tmp_path,
        "generation_config.json",
        {
            "temperature": 1,
            "top_k": 50,
            "top_p": None,
            "min_p": 0.0,
            "repetition_penalty": 1.05,
            "max_length": 20,
        },
    )
    assert read_generation_defaults(tmp_path) == GenerationDefaults(1.0, 50, None, 0.0, 1.05, frozenset({3}))


def test_not_sampling_is_greedy(tmp_path: Path) -> None:
    write_json(tmp_path, "generation_config.json", {"do_sample": False, "temperature": 0.6})
    assert read_generation_defaults(tmp_path).temperature == 0.0
    write_json(tmp_path, "generation_config.json", {"_from_model_config": True, "eos_token_id": 1})
    assert read_generation_defaults(tmp_path).temperature is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "0.6"),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("do_sample", "false"),
    ],
)
def test_bad_generation_values_are_named(tmp_path: Path, key: str, value: object) -> None:
    write_json(tmp_path, "generation_config.json", {key: value})
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {key} is .*; it must be"):
        read_generation_defaults(tmp_path)


def test_bad_temperature_is_named_though_greedy(tmp_path: Path) -> None:
    write_json(tmp_path, "generation_config.json", {"do_sample": False, "temperature": -1})
    with pytest.raises(CheckpointError, match="temperature is -1"):
        read_generation_defaults(tmp_path)


def test_the_ids_are_those_of_a_plain_encode():
    """`encode` goes through the batch call, which lets other threads run; the ids must not show it."""
    folder = Path(carried.__file__).parent / "austen"
    tokenizer = Tokenizer(folder)
    for text in ("", "It was a fine <|begin|> morning, é😀 " * 50, "a" * 10_000, "\n\n \t x"):
        for special in (True, False):
            expected = tokenizer.inner.encode(text, add_special_tokens=special).ids
            assert tokenizer.encode(text, add_special=special) == expected
