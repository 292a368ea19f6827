"""When a sequence has had its last token."""

from __future__ import annotations

from ..sequence import Finish, FinishReason, Sequence


class EndRules:
    """The rules that need no text; stop strings are the detokenizer's, on the API's side.

    `min_tokens` needs no rule here: the sampler bars end-of-sequence and stop token ids until it is reached.
    """

    def __init__(self, eos_ids: frozenset[int], max_model_len: int) -> None:
        self._eos_ids = eos_ids
        self._max_model_len = max_model_len

    def cut(self, seq: Sequence, new: tuple[int, ...]) -> tuple[tuple[int, ...], Finish | None]:
        """The `new` tokens up to the one that ends it all, and the end that it brings; without one, all and None."""
        params = seq.request.params
        eos = () if params.ignore_eos else self._eos_ids
        room = min(seq.prompt_len + params.max_tokens, self._max_model_len) - len(seq.tokens)
        for count, token in enumerate(new, 1):
            if token in eos:
                return new[:count], Finish(reason=FinishReason.STOP)
            if token in params.stop_token_ids:
                return new[:count], Finish(reason=FinishReason.STOP, stop_match=token)
            if count >= room:
                return new[:count], Finish(reason=FinishReason.LENGTH)
        return new, None
