"""Log-probabilities as clients read them: token ids to token texts and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sequence import TokenLogprob
from ..text.tokenizer import Tokenizer

LOWEST = -9999.0  # OpenAI's value for "very unlikely"; JSON has no -Infinity


class TokenNames:
    """The text and bytes of single tokens, remembered: the same few thousand come back all the time.

    A token may hold part of a character; its text is then `bytes:\\xe2\\x80` as OpenAI writes it, so that two such
    tokens stay two keys in a `top_logprobs` object.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._find(token_id)
        return known

    def _find(self, token_id: int) -> tuple[str, bytes]:
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


class LogprobWriter:
    """Log-probabilities in the API's two forms."""

    def __init__(self, names: TokenNames, as_ids: bool) -> None:
        """`as_ids` writes tokens as `token_id:7`."""
        self._names = names
        self._as_ids = as_ids

    def completion(self, entries: Sequence[TokenLogprob], offsets: Sequence[int]) -> dict[str, Any]:
        """The parallel lists of `/v1/completions`; `offsets` is where each token's text begins, in characters."""
        top: list[dict[str, float]] = []
        for entry in entries:
            best = {self._name(token_id): max(logprob, LOWEST) for token_id, logprob in entry.top}
            best.setdefault(
                self._name(entry.token_id), max(entry.logprob, LOWEST)
            )  # the chosen one is always there
            top.append(best)
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [max(entry.logprob, LOWEST) for entry in entries],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def chat(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The list of objects of `/v1/chat/completions`."""
        return {
            "content": [
                self._item(entry.token_id, entry.logprob)
                | {"top_logprobs": [self._item(token_id, logprob) for token_id, logprob in entry.top]}
                for entry in entries
            ],
            "refusal": None,
        }

    def _item(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token_id),
            "logprob": max(logprob, LOWEST),
            "bytes": list(self._names(token_id)[1]),
        }

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._names(token_id)[0]
