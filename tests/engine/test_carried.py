"""The carried model's folder is complete and honest, and its script splits, trains and exports as it says."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.carried import corpus, evaluate, export, optimiser, train
from arc.engine.carried.corpus import Document
from arc.engine.carried.network import MoE, Network, Shape, head_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer, pre_tokenizers
from torch.nn import functional as F

FOLDER = Path(corpus.__file__).parent / "austen"
TINY = Shape(
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=2,
    intermediate_size=48,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_attention_heads=2,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=12,
    max_position_embeddings=64,
)


def read_json(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


# The folder


def test_folder_is_small_and_holds_only_what_it_needs() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 12 * 2**20


def test_config_and_generation_config_agree_with_the_tokenizer(tokenizer: Tokenizer) -> None:
    config, generation = read_json("config.json"), read_json("generation_config.json")
    assert config == export.config(Shape())
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert generation["bos_token_id"] == config["bos_token_id"]
    assert generation["eos_token_id"] == config["eos_token_id"]
    assert (generation["do_sample"], generation["temperature"], generation["top_k"]) == (True, 0.7, 40)
    names = read_json("tokenizer_config.json")
    assert tokenizer.token_to_id(names["bos_token"]) == config["bos_token_id"]
    assert tokenizer.token_to_id(names["eos_token"]) == config["eos_token_id"]


def test_weights_are_complete_and_in_bf16() -> None:
    expected = export.tensors(Network(Shape()))
    with safe_open(FOLDER / "model.safetensors", "pt") as stored:
        assert set(stored.keys()) == set(expected)
        for name, tensor in expected.items():
            found = stored.get_tensor(name)
            bias = name.endswith("e_score_correction_bias")
            assert found.dtype == (torch.float32 if bias else torch.bfloat16), name
            assert found.shape == tensor.shape, name
            assert found.isfinite().all(), name


def test_no_expert_is_left_without_tokens(tokenizer: Tokenizer) -> None:
    network = export.read(FOLDER, Shape())
    text = (FOLDER / "README.md").read_text(encoding="utf-8").partition("## Samples")[2]
    network.train()
    with torch.no_grad():
        network(torch.tensor([tokenizer.encode(text).ids]))
    for router in network.routers():
        if router is not network.mtp.block.mlp:
            assert float(router.load.min()) > 0.02 * float(router.load.sum())


def test_card_states_a_held_out_figure_that_meets_the_bar() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    held_out = float(re.findall(r"^\| held-out chapters, all \| ([\d.]+) \|$", card, re.MULTILINE)[0])
    training = float(re.findall(r"^\| as many training chapters \| ([\d.]+) \|$", card, re.MULTILINE)[0])
    assert 0.5 < held_out <= 1.30
    assert training > 0.8 * held_out  # not learnt by heart
    assert "not an\nassistant" in card


def test_the_model_writes_what_it_was_trained_on(tokenizer: Tokenizer) -> None:
    """The stored weights, read back, are far better than chance on prose in the authors' manner."""
    network = export.read(FOLDER, Shape())
    text = (
        "She was very much surprised at his saying so, and could not help thinking that he must be in love "
        "with her sister; but as he said no more, she was obliged to be satisfied, and they walked on."
    )
    assert evaluate.bits_per_character(network, tokenizer, [Document("X", 1, text)], 256) < 1.8
    shuffled = " ".join(sorted(text.split()))
    assert evaluate.bits_per_character(network, tokenizer, [Document("X", 1, shuffled)], 256) > 1.8


# The tokenizer and the chat template


@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_tokenizer_round_trips_every_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    text = "".join(chr(code) for code in range(0x800)) + "\u2028\uffff\U0001f600\U0010ffff"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("\U0001f600", add_special_tokens=False).ids) <= 4
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(tokenizer.get_vocab())


def test_encoding_puts_the_begin_token_first_once(tokenizer: Tokenizer) -> None:
    begin = tokenizer.token_to_id("<|begin|>")
    assert tokenizer.encode("Emma").ids[0] == begin
    assert begin not in tokenizer.encode("Emma").ids[1:]
    assert begin not in tokenizer.encode("Emma", add_special_tokens=False).ids


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    source = read_json("tokenizer_config.json")["chat_template"]
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    return template.render(messages=messages, bos_token="<|begin|>", eos_token="<|end|>", **options)


def test_chat_template_makes_one_prose_text() -> None:
    conversation = [
        {"role": "system", "content": "A letter.\n"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "My dear Jane, "}, {"type": "text", "text": "I am"}],
        },
        {"role": "assistant", "content": " well.\n\nYours"},
        {"role": "user", "content": "She folded it  "},
    ]
    expected = "<|begin|>A letter.\n\nMy dear Jane, I am well.\n\nYours\n\nShe folded it"
    assert render(conversation) == expected
    assert render(conversation, add_generation_prompt=True) == expected
    assert render(conversation[:3]).endswith("Yours")  # left open: a last assistant text is continued


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_chat_template_takes_every_role_alone(role: str) -> None:
    assert render([{"role": role, "content": "It is a truth"}]) == "<|begin|>It is a truth"
    assert render([{"role": role, "content": None}]) == "<|begin|>"


def test_chat_template_starts_with_nothing_for_no_messages() -> None:
    assert render([]) == "<|begin|>"


# The corpus


# Flags of a string in R's serialization, and what they say of its bytes: all ASCII, Latin-1, UTF-8.
KINDS = ((0x40009, "ascii"), (0x4009, "latin-1"), (0x8009, "utf-8"))


def fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def r_database(vectors: list[list[str]]) -> bytes:
    """An R lazy-load database as R 3.5 and later writes character vectors."""
    records = b""
    for lines in vectors:
        body = b"X\n" + struct.pack(">IIII", 3, 0x40201, 0x30500, 5) + b"UTF-8"
        body += struct.pack(">II", 16, len(lines))
        for line in lines:
            flags, encoding = next(kind for kind in KINDS if fits(line, kind[1]))
            text = line.encode(encoding)
            body += struct.pack(">II", flags, len(text)) + text
        records += struct.pack(">I", len(body)) + zlib.compress(body)
    return records


def test_r_database_is_read_vector_by_vector() -> None:
    vectors = [["EMMA", "", "CHAPTER I"], ["costs \u00a35", "\u20ac5"], []]
    assert corpus.r_character_vectors(r_database(vectors)) == vectors


def test_r_database_with_other_content_is_refused() -> None:
    body = b"X\n" + struct.pack(">IIII", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">III", 13, 1, 7)
    with pytest.raises(ValueError, match="other than character vectors"):
        corpus.r_character_vectors(struct.pack(">I", len(body)) + zlib.compress(body))


def test_novel_is_cut_into_chapters_of_whole_paragraphs() -> None:
    lines = [
        "A Novel", "", "by", "Nobody", "", "Chapter 1", "", "One _fine_", "  day.", "", "", "She  left.", "",
        "VOLUME II", "CHAPTER II.", "", "[At this point", "the volume ends.]", "", "Chapter and verse.",
        "Chapter", "", "THE END", "", "A NOTE ON THE TEXT", "", "An editor's.",
    ]  # fmt: skip
    first, second = corpus.novel(lines)
    assert first == Document("A NOVEL", 1, "One fine day.\n\nShe left.")
    assert second == Document("A NOVEL", 2, "Chapter and verse. Chapter")
    assert not first.is_bible


def test_bible_chapters_are_lines_of_verses() -> None:
    lines = ["1Sm1:1 Now there  was.", "1Sm1:2 And he.", "1Sm2:1 And Hannah.", "Ge10:1 Now these."]
    assert corpus.bible(lines) == [
        Document("1Sm", 1, "Now there was.\nAnd he."),
        Document("1Sm", 2, "And Hannah."),
        Document("Ge", 10, "Now these."),
    ]
    assert all(document.is_bible for document in corpus.bible(lines))
    with pytest.raises(ValueError, match="not a verse"):
        corpus.bible(["Genesis"])


def library() -> list[Document]:
    novels = [
        Document(f"NOVEL {n}", c, f"novel {n} chapter {c} was read") for n in range(3) for c in range(30)
    ]
    return novels + [Document("Gen", c, f"and chapter {c} begat chapter {c + 1}") for c in range(100)]


def test_split_is_deterministic_disjoint_and_touches_every_novel() -> None:
    training, held_out = corpus.split(library(), 0.05, 7)
    assert (training, held_out) == corpus.split(library(), 0.05, 7)
    assert held_out != corpus.split(library(), 0.05, 8)[1]
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out], key=repr) == sorted(library(), key=repr)
    assert {d.book for d in held_out} == {"NOVEL 0", "NOVEL 1", "NOVEL 2", "Gen"}
    assert len(held_out) == 3 * 2 + 5


def test_split_holds_out_one_chapter_even_for_a_tiny_share() -> None:
    assert len(corpus.split(library()[:3], 0.01, 0)[1]) == 1


# Training


def test_head_loss_has_the_gradients_of_cross_entropy() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(1100, 32, requires_grad=True), torch.randn(300, 32, requires_grad=True)
    targets = torch.randint(300, (1100,))
    loss = head_loss(hidden, head, targets)
    (3 * loss).backward()
    fused = (hidden.grad, head.grad)
    hidden.grad = head.grad = None
    plain = F.cross_entropy(hidden @ head.T, targets)
    (3 * plain).backward()
    torch.testing.assert_close(loss, plain, rtol=1e-2, atol=1e-2)
    for mine, theirs in zip(fused, (hidden.grad, head.grad), strict=True):
        assert mine is not None and theirs is not None
        assert float((mine - theirs).norm() / theirs.norm()) < 2e-2


def test_mixture_is_the_weighted_sum_of_its_experts() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    moe = network.layers[1].mlp
    assert isinstance(moe, MoE)
    moe.e_score_correction_bias.copy_(torch.tensor([0.5, -0.5, 0.0, 0.1]))
    x = torch.randn(2, 9, TINY.hidden_size, requires_grad=True)
    flat = x.flatten(0, 1)
    scores = torch.sigmoid(flat @ moe.gate.T)
    expected = moe.shared_experts(flat)
    chosen = (scores + moe.e_score_correction_bias).topk(2).indices
    for token, experts in enumerate(chosen.tolist()):
        total = sum(scores[token, e] for e in experts)
        for e in experts:
            gate, up = (moe.gate_up[e] @ flat[token]).chunk(2)
            share = scores[token, e] / total * TINY.routed_scaling_factor
            out = torch.zeros_like(expected)
            out[token] = share * (moe.down[e] @ (F.silu(gate) * up))
            expected = expected + out
    torch.testing.assert_close(moe(x).flatten(0, 1), expected, rtol=1e-4, atol=1e-5)
    probe = torch.randn_like(expected)
    mine = torch.autograd.grad((moe(x).flatten(0, 1) * probe).sum(), [x, moe.gate_up, moe.gate])
    plain = torch.autograd.grad((expected * probe).sum(), [x, moe.gate_up, moe.gate])
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_selection_bias_moves_against_load() -> None:
    moe = Network(TINY).layers[1].mlp
    assert isinstance(moe, MoE)
    moe.load.copy_(torch.tensor([10.0, 0.0, 4.0, 6.0]))
    assert moe.balance(0.01) == 0.5
    assert moe.e_score_correction_bias.tolist() == pytest.approx([-0.01, 0.01, 0.01, -0.01])
    assert moe.load.tolist() == [0, 0, 0, 0]


def test_a_draft_sees_only_what_came_before_it() -> None:
    torch.manual_seed(0)
    network = Network(TINY).eval()
    tokens = torch.randint(300, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 7) % 300
    with torch.no_grad():
        runs = []
        for row in (tokens, changed):
            runs.append(network.mtp(network(row), network.embed_tokens(row), 3))
    for depth, (one, other) in enumerate(zip(*runs, strict=True), 1):
        # State j of depth d has read tokens up to j + d.
        same = 12 - depth
        torch.testing.assert_close(one[:, :same], other[:, :same])
        assert not torch.allclose(one[:, same], other[:, same])


def test_a_chain_of_drafts_equals_one_made_token_by_token() -> None:
    """Depth 2 against its definition: one query on depth 1's keys up to its start, and its own."""
    torch.manual_seed(0)
    network = Network(TINY).eval()
    attn, mtp, start = network.mtp.block.self_attn, network.mtp, 6
    tokens = torch.randint(300, (1, 12))
    with torch.no_grad():
        hidden, embedded = network(tokens), network.embed_tokens(tokens)
        first, second = mtp(hidden, embedded, 2)
        joined = torch.cat((mtp.enorm(embedded[:, 1:]), mtp.hnorm(hidden[:, :-1])), -1)
        _, k1, v1 = attn.project(mtp.block.input_layernorm(mtp.eh_proj(joined)), 0)
        deeper = torch.cat((mtp.enorm(embedded[:, start + 2]), mtp.hnorm(first[:, start])), -1)
        x = mtp.eh_proj(deeper)[:, None]
        q, k, v = attn.project(mtp.block.input_layernorm(x), start + 1)
        keys, values = (
            torch.cat(pair, 2) for pair in ((k1[:, :, : start + 1], k), (v1[:, :, : start + 1], v))
        )
        everything = torch.ones(1, start + 2, dtype=torch.bool)
        state = mtp.norm(mtp.block.finish(x, attn.attend(q, keys, values, everything)))
    torch.testing.assert_close(state[:, 0], second[:, start], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 96), (96, 32), (4, 24, 32)])
def test_muon_makes_singular_values_alike(size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(optimiser.orthogonalise(torch.randn(size)).float())
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3


def test_every_parameter_has_one_optimiser() -> None:
    network = Network(TINY)
    groups = [group for one in optimiser.build(network, 1e-3, 0.1) for group in one.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in network.parameters())


def test_windows_score_every_token_once() -> None:
    """A text read in small windows costs as much as in one, for a network that ignores what it reads."""
    tokenizer = corpus.train_tokenizer(library(), 300)
    network = Network(TINY)
    with torch.no_grad():
        network.lm_head.weight.zero_()  # every token costs log2(300) bits
    document = Document("X", 1, " ".join(d.text for d in library()[:9]))
    tokens = len(corpus.encode(tokenizer, document)) - 1
    for window in (2, 8, 34, 4096):
        bits = evaluate.bits_per_character(network, tokenizer, [document], window)
        assert bits == pytest.approx(tokens * 8.2288 / len(document.text), rel=1e-4)


def small_run(monkeypatch: pytest.MonkeyPatch) -> train.Data:
    monkeypatch.setattr(train, "TOKENS_PER_STEP", 128)
    monkeypatch.setattr(train, "PHASES", ((16, 0.6), (32, 1.0)))
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 6)
    monkeypatch.setattr(train, "WARMUP_STEPS", 2)
    training, held_out = corpus.split(library(), 0.05, 1)
    return train.Data(training, held_out, corpus.train_tokenizer(training, 300))


def fresh() -> Network:
    torch.manual_seed(3)
    return Network(TINY)


def test_training_learns_and_a_cut_run_ends_at_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = small_run(monkeypatch)
    whole = fresh()
    progress = train.fit(whole, data, 18, tmp_path / "whole.pt")
    assert [step for step, _ in progress.curve] == [6, 12, 18]
    assert progress.curve[-1][1] < 0.8 * progress.curve[0][1]

    class Cut(Exception):
        pass

    def advance(*arguments: Any) -> Any:
        if arguments[3] == 8:
            raise Cut
        return step(*arguments)

    step = train.advance
    monkeypatch.setattr(train, "advance", advance)
    with pytest.raises(Cut):
        train.fit(fresh(), data, 18, tmp_path / "cut.pt")
    monkeypatch.setattr(train, "advance", step)
    resumed = Network(TINY)
    assert train.fit(resumed, data, 18, tmp_path / "cut.pt").curve == progress.curve
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_batches_are_seeded_and_read_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "TOKENS_PER_STEP", 64)
    monkeypatch.setattr(train, "PHASES", ((16, 1.0),))
    chapters = [torch.arange(start, start + 50) for start in range(1000, 2000, 50)]
    rows = list(train.batches(chapters, 15))
    assert all(torch.equal(a, b) for a, b in zip(rows, train.batches(chapters, 15), strict=True))
    assert all(batch.shape == (4, 17) for batch in rows)
    seen = {int(token) for batch in rows for token in batch.flatten()} - {0}
    assert len(seen) > 900
    heads = [int(row[0]) == 0 for batch in rows for row in batch]
    assert 0.2 < sum(heads) / len(heads) < 0.8
    for batch in rows:
        for row in batch[batch[:, 0] != 0]:
            assert len(row.unique()) == 17


def test_learning_rate_warms_up_and_ends_at_nothing() -> None:
    rates = [train.learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(train.LEARNING_RATE / train.WARMUP_STEPS)
    assert max(rates) == train.LEARNING_RATE
    assert 0 < rates[-1] < 0.01 * train.LEARNING_RATE
    assert rates[400:] == sorted(rates[400:], reverse=True)


def test_export_writes_what_it_reads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    for router in network.routers():
        router.e_score_correction_bias.normal_()
    tokenizer = corpus.train_tokenizer(library(), 300)
    export.write(tmp_path, network, tokenizer)
    back = export.read(tmp_path, TINY).state_dict()
    for name, tensor in network.state_dict().items():
        kept = tensor if name.endswith("correction_bias") else tensor.bfloat16().float()
        torch.testing.assert_close(back[name], kept, rtol=0, atol=0)
