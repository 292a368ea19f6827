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
        for count, token in enumerate(new, 1):
            if (finish := self._finish_of(seq, token, count)) is not None:
                return new[:count], finish
        return new, None

    def _finish_of(self, seq: Sequence, token: int, new: int) -> Finish | None:
        """The end that `token` brings, the last of `new` tokens that the sequence does not count yet."""
        params = seq.request.params
        if token in self._eos_ids and not params.ignore_eos:
            return Finish(reason=FinishReason.STOP)
        if token in params.stop_token_ids:
            return Finish(reason=FinishReason.STOP, stop_match=token)
        if seq.output_len + new >= params.max_tokens or len(seq.tokens) + new >= self._max_model_len:
            return Finish(reason=FinishReason.LENGTH)
        return None
