"""Text to token ids and back, by the tokenizer.json of a checkpoint folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import tokenizers

from ..folder import CheckpointError, JsonObject, read_eos_ids, read_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level BPE (GPT-2): printable Latin-1 is itself, the rest is U+0100 and upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHAR = byte_of_char()


class TooManyTokens(Exception):
    """A text has more tokens than its asker has a use for."""

    def __init__(self, count: int) -> None:
        super().__init__(f"the text has {count} tokens")
        self.count = count


class Tokenizer:
    """The tokenizer of one folder. Encoding and decoding hold no state: any thread may call them.

    `inner` is the underlying tokenizers.Tokenizer, for DecodeStream. `bos_id` None: it has none.
    """

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError when tokenizer.json is missing or malformed, or lacks a special token."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(f"{folder} has no tokenizer.json{other_tokenizers(folder)}")
        try:
            self.inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from error
        self.inner.no_truncation()  # a prompt is never cut in silence
        self.inner.no_padding()
        self.vocab_size = self.inner.get_vocab_size(with_added_tokens=True)
        self.added = {id_: token.content for id_, token in self.inner.get_added_tokens_decoder().items()}
        self.byte_level = "ByteLevel" in repr(self.inner.decoder)  # alone or in a sequence of decoders

        config = read_config(folder)
        self.bos_id = self.special_id(config, "bos_token")
        self.eos_ids = read_eos_ids(folder) or frozenset(
            id_ for id_ in [self.special_id(config, "eos_token")] if id_ is not None
        )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The folder's tokenizer, or None when it has no tokenizer.json and only token ids can be served."""
        return cls(folder) if (folder / "tokenizer.json").exists() else None

    def special_id(self, config: JsonObject, key: str) -> int | None:
        content = special_token(config, key)
        if content is None:
            return None
        id_ = self.inner.token_to_id(content)
        if id_ is None:
            raise config.error(key, "it is not a token of tokenizer.json")
        return id_

    def encode(self, text: str, *, add_special: bool, most: int | None = None) -> list[int]:
        """Token ids of `text`. `add_special`: with what the tokenizer's post-processor puts around every text,
        most often a beginning-of-sequence token; a rendered chat already holds it. add_bos_token in
        tokenizer_config.json has no say, as in transformers 5.

        Raises ValueError for a text that is not Unicode (a lone surrogate), and TooManyTokens where there would be more
        than `most`: a list of millions holds the whole process while it is made, so one that is refused is not made.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode at character {error.start}") from error
        # The batch call lets other threads run, which `encode` does not: a megabyte of text held
        # the whole process for a second. The fast one leaves out offsets, which nobody needs here.
        encoding = self.inner.encode_batch_fast([text], add_special_tokens=add_special)[0]
        if most is not None and len(encoding) > most:
            raise TooManyTokens(len(encoding))
        return encoding.ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that form no character become U+FFFD, ids without a token nothing."""
        return self.inner.decode(ids, skip_special_tokens=skip_special)

    def token_bytes(self, id_: int) -> bytes:
        """The bytes one token stands for, which need not be whole characters; empty beyond the vocabulary.

        Models pad their vocabulary, so that ids without a token exist and random weights do choose them.
        """
        token = self.inner.id_to_token(id_)
        if token is None:
            return b""
        if id_ in self.added:
            return self.added[id_].encode()
        if self.byte_level:
            return b"".join(
                bytes([BYTE_OF_CHAR[char]]) if char in BYTE_OF_CHAR else char.encode() for char in token
            )
        if match := BYTE_FALLBACK.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace("\u2581", " ").encode()

    def token_text(self, id_: int) -> str:
        """One token as text, for log-probabilities: bytes that are no whole character become U+FFFD."""
        return self.token_bytes(id_).decode("utf-8", "replace")


def read_config(folder: Path) -> JsonObject:
    """tokenizer_config.json, or an empty object when there is none."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else JsonObject(path, {})


def special_token(config: JsonObject, key: str) -> str | None:
    """A special token's text, written as a string or as an object that holds it."""
    if isinstance(config.values.get(key), dict):
        token = config.object(key)
        return None if token is None else token.text("content")
    return config.text(key)


def other_tokenizers(folder: Path) -> str:
    """What the folder holds instead, for the message."""
    for name in ("tiktoken.model", "tekken.json", "tokenizer.model"):
        if (folder / name).exists():
            return f", only {name}, which transformers can convert"
    return ""
