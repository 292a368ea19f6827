"""Tokens to text as they come, with stop strings: what is said is never taken back.

The pieces of a stream joined are the tokenizer's decode of all its ids at once. A token may end inside a character, and
a decoder may treat the first token of a text differently, so tokens cannot be decoded one by one. Work for a token does
not grow with the text before it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

_UNDECODED = "\ufffd"
_LONGEST_CHARACTER = 4  # bytes of UTF-8


class Piece(NamedTuple):
    """What a push brought. Joined, the texts are the output, up to the stop string (with include_stop: and with it)."""

    text: str
    stopped: str | None  # the stop string that ended the output
    tokens_used: int  # how many of the pushed tokens belong to the output, the stop string's own included
    offsets: tuple[
        int, ...
    ]  # for each used token, the character of the whole output at which its text begins


class Detokenizer:
    """One stream of tokens. Pushes after a stop use no token and bring no text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        """Raises ValueError for an empty stop string."""
        self._text = _text_of(tokenizer, skip_special)
        self._stops = _StopMatcher(stop) if stop else None
        self._include_stop = include_stop
        self._decoded = 0  # characters, those held back included
        self._stopped: str | None = None

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The text that is certain now: no character that may still change, no beginning of a stop string."""
        if len(token_ids) == 1 and self._stopped is None:  # a decode step's, of nearly every push
            offset = self._decoded
            text = self._take(self._text.push(token_ids[0]))
            return Piece(text, self._stopped, 1, (offset,))
        out: list[str] = []
        offsets: list[int] = []
        for token in token_ids:
            if self._stopped is not None:
                break
            offsets.append(self._decoded)
            out.append(self._take(self._text.push(token)))
        return Piece("".join(out), self._stopped, len(offsets), tuple(offsets))

    def flush(self) -> Piece:
        """The end of the tokens: everything that was held back, an unfinished character as U+FFFD."""
        text = ""
        if self._stopped is None:
            text = self._take(self._text.flush())
            if self._stopped is None and self._stops is not None:
                text += self._stops.release()
        return Piece(text, self._stopped, 0, ())

    def _take(self, text: str) -> str:
        self._decoded += len(text)
        if self._stops is None:
            return text
        sure, self._stopped = self._stops.push(text)
        return sure + self._stopped if self._stopped is not None and self._include_stop else sure


class _StopMatcher:
    """Finds the stop string that is complete first; of those that end at the same character, the longest.

    So the answer depends on the text alone and not on how it was cut. Each stop string is followed by its own automaton
    (Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6, 1977): a character costs the same
    however long the stop strings are, and the longest partial match is exactly what must be held back.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is certain to be before any stop string, and the stop string when one is complete."""
        buffer = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            for which, stop in enumerate(self._stops):
                matched = self._matched[which]
                while matched and stop[matched] != character:
                    matched = self._borders[which][matched - 1]
                if stop[matched] == character:
                    matched += 1
                self._matched[which] = matched
                if matched == len(stop):
                    return buffer[: end - matched], stop
        sure = len(buffer) - max(self._matched)
        self._held = buffer[sure:]
        return buffer[:sure], None

    def release(self) -> str:
        held, self._held = self._held, ""
        return held


def _borders(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = borders[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        borders[i] = length
    return borders


class _Text(Protocol):
    """Decodes one token after another; joined, the results are the decode of all."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


def _text_of(tokenizer: Tokenizer, skip_special: bool) -> _Text:
    facts = _facts(tokenizer)
    skipped = facts.special if skip_special else frozenset[int]()
    if facts.byte_level:
        return _ByteLevelText(tokenizer, skipped, facts.byte_pieces)
    return _WindowText(tokenizer, skipped)


class _BytePiece(NamedTuple):
    raw: bytes
    text: str | None  # None: it holds part of a character, or of none


@dataclass(frozen=True, slots=True)
class _Facts:
    special: frozenset[int]
    byte_level: bool
    # what tokens stand for, once they have come: the same few thousand come back all the time
    byte_pieces: dict[int, _BytePiece] = field(default_factory=dict)


@lru_cache(maxsize=8)
def _facts(tokenizer: Tokenizer) -> _Facts:
    added = tokenizer.get_added_tokens_decoder()
    decoder = tokenizer.decoder
    return _Facts(
        special=frozenset(i for i, token in added.items() if token.special),
        byte_level=decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel",
    )


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet (bytes_to_unicode): printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


class _ByteLevelText:
    """A byte-level vocabulary: each token is bytes, so the state is the bytes of an unfinished character.

    No window of tokens would do: tokens may all end inside characters, and then no border between them is clean.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], pieces: dict[int, _BytePiece]) -> None:
        """`pieces`: of this tokenizer; it fills."""
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unfinished = False  # bytes of a character are in `_utf8`

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        piece = self._pieces.get(token) or self._find(token)
        if piece.text is not None and not self._unfinished:
            return piece.text
        text = self._utf8.decode(piece.raw)
        self._unfinished = self._utf8.getstate()[0] != b""
        return text

    def _find(self, token: int) -> _BytePiece:
        name = self._tokenizer.id_to_token(token)
        if name is None:
            raw = b""
        else:
            try:
                raw = bytes([_BYTE_OF_CHARACTER[character] for character in name])
            except KeyError:  # an added token is plain text, in characters that the alphabet does not have
                raw = name.encode()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = None
        piece = self._pieces[token] = _BytePiece(raw, text)
        return piece

    def flush(self) -> str:
        self._unfinished = False
        return self._utf8.decode(b"", final=True)


class _WindowText:
    """Any other decoder, seen through a window: the last settled token, as the context, and those not yet settled.

    Unsettled is what ends in U+FFFD: byte tokens (`<0xE2>`) of an unfinished character, at most three. A decoder with
    byte fallback spoils a whole run of byte tokens when one is wrong; characters that are out by then stand.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._context: list[int] = []
        self._context_text = ""
        self._unsettled: list[int] = []

    def push(self, token: int) -> str:
        if token in self._skipped or self._tokenizer.id_to_token(token) is None:
            return ""
        self._unsettled.append(token)
        text = self._new_text()
        if text.endswith(_UNDECODED) and len(self._unsettled) < _LONGEST_CHARACTER:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        return self._settle(self._new_text()) if self._unsettled else ""

    def _new_text(self) -> str:
        text = self._decode(self._context + self._unsettled)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(self._unsettled)

    def _settle(self, text: str) -> str:
        self._context, self._unsettled = self._unsettled, []
        self._context_text = self._decode(self._context)
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
