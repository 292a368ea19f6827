from __future__ import annotations

import pytest
from arc.engine.text.detokenizer import Detokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = [
    "It is a truth universally acknowledged, that a single man in possession of a good fortune",
    "must be in want of a wife. However little known the feelings  or views of such a man may be",
    "café naïve Zürich 日本語 한국어 😀 👩‍👩‍👧 e\u0301 ﷽ \n\n\t end.",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_tokens([AddedToken("<｜tool▁call｜>"), AddedToken("two words"), AddedToken("é plain")])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool>")])
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def word_suffix() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["<unk>", "<s>"], end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """The layout of SentencePiece models with byte fallback: what has no token is spelt in tokens like <0xE2>."""
    names = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        "▁a",
        "▁the",
        "cat",
        "s",
        ".",
        "▁▁",
    ]
    tokenizer = Tokenizer(
        models.BPE({n: i for i, n in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


EXACT = {
    "byte level": byte_level(),
    "metaspace": metaspace(),
    "wordpiece": wordpiece(),
    "word suffix": word_suffix(),
}
FALLBACK = byte_fallback()


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    any_id = st.integers(
        0, tokenizer.get_vocab_size() + 2
    )  # a model's vocabulary may be padded past the tokenizer's
    text = st.text(max_size=6).map(lambda t: tokenizer.encode(t, add_special_tokens=False).ids)
    real = st.sampled_from(TEXT).map(lambda t: tokenizer.encode(t, add_special_tokens=False).ids)
    parts = st.lists(st.one_of(st.lists(any_id, max_size=4), text, real), max_size=6)
    return parts.map(lambda lists: [i for ids in lists for i in ids])


def cut(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """The ids in pushes of none, one or more."""
    borders = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=len(ids))))
    return [ids[a:b] for a, b in zip([0, *borders], [*borders, len(ids)], strict=True)]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_the_pieces_joined_are_the_decode_of_all_ids(name, data, skip):
    tokenizer = EXACT[name]
    ids = data.draw(ids_of(tokenizer))
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    pieces = [detokenizer.push(push) for push in cut(data, ids)]
    assert sum(p.tokens_used for p in pieces) == len(ids)
    text = "".join(p.text for p in pieces) + detokenizer.flush().text
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", [*EXACT, "byte fallback"])
@pytest.mark.parametrize("text", TEXT)
def test_what_is_out_is_never_replaced_when_a_character_completes(name, text):
    tokenizer = EXACT.get(name, FALLBACK)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer, skip_special=True)
    out = ""
    for token in ids:
        out += detokenizer.push([token]).text
        assert "\ufffd" not in out
    assert out + detokenizer.flush().text == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_byte_fallback_decodes_well_formed_runs_exactly(data):
    text = data.draw(
        st.lists(st.sampled_from(["日", "é", "😀", " ", "a", "the", "cat", "\n"]), max_size=12).map("".join)
    )
    ids = FALLBACK.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(FALLBACK, skip_special=True)
    out = "".join(detokenizer.push([i]).text for i in ids) + detokenizer.flush().text
    assert out == FALLBACK.decode(ids)


def test_byte_fallback_lets_out_what_was_whole_and_marks_what_is_not():
    # <0xC3><0xA9> is out as é; decoded at once, the bad <0xFF> would spoil the run and unsay it.
    ids = [id_of(FALLBACK, t) for t in ("▁the", "<0xC3>", "<0xA9>", "<0xFF>", "cat", "<0xE2>", "<0x82>")]
    detokenizer = Detokenizer(FALLBACK, skip_special=True)
    assert [detokenizer.push([i]).text for i in ids] == ["the", "", "é", "", "\ufffdcat", "", ""]
    assert detokenizer.flush().text == "\ufffd\ufffd"


def test_endless_bad_bytes_come_out_and_do_not_pile_up():
    detokenizer = Detokenizer(FALLBACK, skip_special=True)
    bad = id_of(FALLBACK, "<0xFF>")
    out = "".join(detokenizer.push([bad]).text for _ in range(1000))
    assert 990 <= len(out) <= 1000
    assert out + detokenizer.flush().text == "\ufffd" * 1000


class Counting:
    """A tokenizer that counts how many ids it was asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def decode(self, ids, skip_special_tokens=True):
        self.decoded += len(ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("name", [*EXACT, "byte fallback"])
def test_work_per_token_does_not_grow_with_the_output(name):
    counting = Counting(EXACT.get(name, FALLBACK))
    detokenizer = Detokenizer(counting, skip_special=True, stop=("never",))  # pyright: ignore[reportArgumentType]
    ids = [i % counting.get_vocab_size() for i in range(0, 7 * 3000, 7)]
    spent = []
    for start in range(0, 3000, 1000):
        before = counting.decoded
        for token in ids[start : start + 1000]:
            detokenizer.push([token])
        spent.append(counting.decoded - before)
    assert max(spent) <= 12 * 1000


LETTERS = Tokenizer(
    models.WordLevel({c: i for i, c in enumerate("abc\n")} | {"ab": 4, "bca": 5, "": 6}, unk_token="a")
)
LETTERS.decoder = decoders.Fuse()
letter_ids = st.lists(st.integers(0, 6), max_size=30)
stop_strings = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=4).map(tuple)


@settings(max_examples=500, deadline=None)
@given(letter_ids, stop_strings, st.booleans(), st.data())
@example([0, 1, 0, 1, 0, 2], ("ababc", "abac"), False, None)
def test_a_stop_string_ends_the_text_wherever_tokens_are_cut(ids, stop, include, data):
    detokenizer = Detokenizer(LETTERS, skip_special=True, stop=stop, include_stop=include)
    pushes = [[i] for i in ids] if data is None else cut(data, ids)
    pieces = [detokenizer.push(push) for push in pushes] + [detokenizer.flush()]
    text = LETTERS.decode(ids)
    # The shortest beginning of the text that ends in a stop string; of those strings, the longest.
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stop)]
    if not ends:
        assert "".join(p.text for p in pieces) == text
        assert all(p.stopped is None for p in pieces)
        assert sum(p.tokens_used for p in pieces) == len(ids)
        return
    match = max((s for s in stop if text[: ends[0]].endswith(s)), key=len)
    assert "".join(p.text for p in pieces) == text[: ends[0] - (0 if include else len(match))]
    assert pieces[-1].stopped == match
    used = sum(p.tokens_used for p in pieces)
    assert len(LETTERS.decode(ids[: used - 1])) < ends[0] <= len(LETTERS.decode(ids[:used]))


@settings(max_examples=300, deadline=None)
@given(letter_ids, stop_strings)
def test_only_what_could_become_a_stop_string_is_held_back(ids, stop):
    detokenizer = Detokenizer(LETTERS, skip_special=True, stop=stop)
    out = ""
    for n, token in enumerate(ids):
        piece = detokenizer.push([token])
        out += piece.text
        if piece.stopped is not None:
            return
        seen = LETTERS.decode(ids[: n + 1])
        held = seen[len(out) :]
        assert seen.startswith(out)
        longest = max((k for s in stop for k in range(len(s)) if seen.endswith(s[:k])), default=0)
        assert len(held) == longest


def test_tokens_after_a_stop_are_not_used():
    detokenizer = Detokenizer(LETTERS, skip_special=True, stop=("b",))
    piece = detokenizer.push([0, 1, 2, 2])
    assert (piece.text, piece.stopped, piece.tokens_used) == ("a", "b", 2)
    assert (detokenizer.push([0]).tokens_used, detokenizer.push([0]).text) == (0, "")
    assert (detokenizer.flush().text, detokenizer.flush().stopped) == ("", "b")


def test_a_stop_string_inside_one_token_cuts_it():
    detokenizer = Detokenizer(LETTERS, skip_special=True, stop=("c",))
    piece = detokenizer.push([5])
    assert (piece.text, piece.stopped, piece.tokens_used) == ("b", "c", 1)


def test_a_stop_string_of_several_bytes_is_found_across_tokens():
    tokenizer = EXACT["byte level"]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("x😀日y")
    ids = [id_of(tokenizer, character) for part, _ in alphabet for character in part]
    assert len(ids) == 9  # a token for each byte
    detokenizer = Detokenizer(tokenizer, skip_special=True, stop=("😀日",))
    pieces = [detokenizer.push([i]) for i in ids]
    assert "".join(p.text for p in pieces) == "x"
    assert pieces[-1].stopped == "😀日"
    assert sum(p.tokens_used for p in pieces) == 8


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="a stop string is empty"):
        Detokenizer(LETTERS, skip_special=True, stop=("a", ""))


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_offsets_say_where_each_token_begins(name, data):
    tokenizer = EXACT[name]
    ids = data.draw(ids_of(tokenizer))
    detokenizer = Detokenizer(tokenizer, skip_special=True, stop=("zzz", "a man"))
    offsets = [o for push in cut(data, ids) for o in detokenizer.push(push).offsets]
    fresh = Detokenizer(tokenizer, skip_special=True)
    text, expected = "", []
    for token in ids[: len(offsets)]:
        expected.append(len(text))
        text += fresh.push([token]).text
    assert offsets == expected
