"""The model card: what was measured after training, and the README.md that says it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import evaluate
from .corpus import Document, encode
from .network import Network

WINDOW = 2048  # tokens of context, at most, when the held-out chapters are scored
DEPTHS = 3
GREEDY_PROMPT, GREEDY_TOKENS = 64, 96
TEMPERATURE, TOP_K, SAMPLE_TOKENS = 0.7, 40, 160
PROMPTS = (
    "Mr. Darcy looked at the letter for some time, and",
    "And the king said unto his servants,",
    "It was a fine morning in London, and the new machine",
)


@dataclass(frozen=True)
class Run:
    """How the network was trained; `curve` holds (step, held-out bits a character) seen on the way."""

    seed: int
    steps: int
    tokens: int
    epochs: float
    seconds: float
    curve: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Report:
    """Bits a character on held-out text (all, novels, Bible) and on training text; agreement; samples."""

    held_out: float
    held_out_novels: float
    held_out_bible: float
    training: float
    agreement_text: list[float]
    agreement_greedy: list[float]
    samples: list[str]
    held_out_novel_chapters: int
    held_out_bible_chapters: int
    held_out_characters: int
    training_characters: int
    parameters: int


def measure(
    network: Network, tokenizer: Tokenizer, training: Sequence[Document], held_out: Sequence[Document]
) -> Report:
    """Everything the card states, on the weights as they are written."""

    def bits(documents: Sequence[Document]) -> float:
        return evaluate.bits_per_character(network, tokenizer, documents, WINDOW)

    novels = [d for d in held_out if not d.is_bible]
    bible = [d for d in held_out if d.is_bible]
    # As many training chapters of each kind as are held out, spread over all books.
    seen: list[Document] = []
    for kind, count in ((False, len(novels)), (True, len(bible))):
        chapters = [d for d in training if d.is_bible == kind]
        seen += chapters[:: len(chapters) // count][:count]
    texts = [torch.tensor(encode(tokenizer, d))[: network.shape.max_position_embeddings] for d in held_out]
    written: list[Tensor] = []
    for row in texts:
        ids = evaluate.continuation(network, row[:GREEDY_PROMPT].tolist(), GREEDY_TOKENS)
        written.append(torch.tensor(ids))
    samples = []
    for seed, prompt in enumerate(PROMPTS):
        choice = evaluate.Sampling(TEMPERATURE, TOP_K, seed)
        ids = evaluate.continuation(network, tokenizer.encode(prompt).ids, SAMPLE_TOKENS, choice)
        samples.append(tokenizer.decode(ids))
    return Report(
        held_out=bits(held_out),
        held_out_novels=bits(novels),
        held_out_bible=bits(bible),
        training=bits(seen),
        agreement_text=evaluate.agreement(network, texts, DEPTHS, 0),
        agreement_greedy=evaluate.agreement(network, written, DEPTHS, GREEDY_PROMPT),
        samples=samples,
        held_out_novel_chapters=len(novels),
        held_out_bible_chapters=len(bible),
        held_out_characters=sum(len(d.text) for d in held_out),
        training_characters=sum(len(d.text) for d in training),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
    )


def render(network: Network, run: Run, report: Report) -> str:
    """The text of README.md."""
    s = network.shape
    mtp = sum(parameter.numel() for parameter in network.mtp.parameters())
    samples = "\n\n".join("> " + sample.replace("\n", "\n> ") + " ..." for sample in report.samples)
    curve = "\n".join(f"| {step:,} | {bits:.3f} |" for step, bits in run.curve)
    return f"""\
# austen: a small DeepSeek-V3 that continues text

{report.parameters / 1e6:.2f} million parameters in bf16, in the shape of DeepSeek-V3: latent attention,
{s.n_routed_experts} routed experts of which {s.num_experts_per_tok} work on a token, one shared expert, one
multi-token prediction (MTP) layer. It exists so that an engine can be tried, tested and shown with a
real model and without a download.

**It continues English prose in the manner of Jane Austen and the King James Bible. It is not an
assistant**: it was never trained on questions, instructions or conversations, knows nothing after 1818,
and states falsehoods fluently. Its chat template therefore marks no roles. It joins the messages into
one text, which the model continues: text by the assistant is appended as it stands, any other message
begins a new paragraph.

## Data and licences

Both texts are in the public domain, and both come from Debian packages:

- Jane Austen's six novels (*Sense and Sensibility*, *Pride and Prejudice*, *Mansfield Park*, *Emma*,
  *Northanger Abbey*, *Persuasion*; 1811 to 1818), from `r-cran-janeaustenr`. The author died in 1817.
  The package is under the MIT licence; nothing but the novels' text was used.
- The King James Bible (1611), from `bible-kjv` and `bible-kjv-text`, whose notice says that the
  copyright of the text is expired. In the United Kingdom the Crown holds a perpetual prerogative over
  printing the King James Bible; elsewhere it is in the public domain.

The weights are under the licence of this repository. Lines were joined into paragraphs, marks of
italics, chapter headings and verse numbers removed. A chapter, from `<|begin|>` to `<|end|>`, is one
document; a Bible chapter has one verse a line.

Held out, chosen by chapter before the tokenizer was made: {report.held_out_novel_chapters} chapters of
the novels, from each of the six, and {report.held_out_bible_chapters} of the Bible, together
{report.held_out_characters:,} characters; {report.training_characters:,} were left for training.

## Measured

| bits a character | |
|---|---|
| held-out chapters, all | {report.held_out:.3f} |
| held-out chapters of the novels | {report.held_out_novels:.3f} |
| held-out chapters of the Bible | {report.held_out_bible:.3f} |
| as many training chapters | {report.training:.3f} |

Total bits over total characters, end tokens included, on the bf16 weights computed in fp32, in windows
of {WINDOW:,} tokens that overlap by half. The held-out chapters come from the same books as the training
text: the names in them are known, and the Bible tells some stories twice. On other English expect
worse. The learning rate, when to end dropout and how long to train on long rows were decided with such
figures in view. The training chapters were read about eight times and are partly remembered, hence the
gap; held-out text did not get worse at any point.

Held out, on a third of those chapters in windows of 256 tokens, while training went on:

| step | bits a character |
|---|---|
{curve}

How often the MTP layer's draft is the token that the model itself ranks first, given that the drafts
before it were right (trained at depths 1 and 2; depth 3 is beyond what it was trained for):

| depth | on held-out text | on the model's own greedy text |
|---|---|---|
{_agreement_rows(report)}

## Shape

| | |
|---|---|
| hidden size, vocabulary | {s.hidden_size}, {s.vocab_size:,} (byte-level BPE: every text can be encoded) |
| layers | {s.num_hidden_layers}, the first of them dense, {s.intermediate_size} wide |
| heads | {s.num_attention_heads} |
| query head | {s.qk_nope_head_dim} dimensions without position, {s.qk_rope_head_dim} with |
| value head | {s.v_head_dim} |
| query rank, latent rank | {s.q_lora_rank}, {s.kv_lora_rank} |
| rotary embedding | pairs interleaved, theta {s.rope_theta:,.0f}, not scaled |
| experts | {s.n_routed_experts}, {s.num_experts_per_tok} a token, and a shared one |
| width of an expert | {s.moe_intermediate_size} |
| routing | sigmoid, one group, selection bias; weights normalised, times {s.routed_scaling_factor} |
| context | {s.max_position_embeddings:,} tokens |

The MTP layer ({mtp / 1e6:.2f} million of the parameters) is `model.layers.{s.num_hidden_layers}`. Its
embedding and its output head are the main model's, `model.embed_tokens` and `lm_head`, and are not
stored again. At position i, `eh_proj` joins `enorm` of the embedding of token i + 1, which comes first,
and `hnorm` of the hidden state at i; the layer predicts token i + 2, and its rotary position is i. The
hidden state is the main model's after `model.norm`. For a further draft, one position higher, it is the
MTP layer's own after `shared_head.norm`; that draft attends to the first-depth keys of all positions up
to where its chain began, and then to the keys of the chain.

## Training

    python -m arc.engine.carried.train --out DIR

Seed {run.seed}, {run.steps:,} steps, {run.tokens:,} tokens ({run.epochs:.1f} passes over the training
text), {run.seconds / 60:.0f} minutes on one thread of a shared {platform.machine()} CPU with bf16
instructions, torch {torch.__version__.partition("+")[0]}. Muon for the matrices of the layers, AdamW for
the rest, one learning rate; rows of 256 tokens, at the end 512, 1,024 and 2,048; channel dropout of
0.1 until the learning rate falls; the MTP layer two deep on a quarter of the rows, and on one row of
two when rows are longest. All settings stand at the top of `train.py`. Another CPU or torch version
rounds otherwise, and gives other weights of about the same quality.

## Samples

Temperature {TEMPERATURE}, top-k {TOP_K}, the first try of seeds 0, 1 and 2; greedy decoding falls into loops.

{samples}
"""


def _agreement_rows(report: Report) -> str:
    pairs = zip(report.agreement_text, report.agreement_greedy, strict=True)
    return "\n".join(
        f"| {depth} | {text:.2f} | {greedy:.2f} |" for depth, (text, greedy) in enumerate(pairs, 1)
    )
