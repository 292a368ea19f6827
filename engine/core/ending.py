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

    def finish_of(self, seq: Sequence) -> Finish | None:
        """The end that the sequence's newest token brings, if it brings one."""
        params = seq.request.params
        token = seq.tokens[-1]
        if token in self._eos_ids and not params.ignore_eos:
            return Finish(reason=FinishReason.STOP)
        if token in params.stop_token_ids:
            return Finish(reason=FinishReason.STOP, stop_match=token)
        if seq.output_len >= params.max_tokens or len(seq.tokens) >= self._max_model_len:
            return Finish(reason=FinishReason.LENGTH)
        return None
