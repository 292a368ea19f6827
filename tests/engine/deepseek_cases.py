"""Small random checkpoints in transformers' DeepseekV2/V3 form, and the same models in arc."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache
from arc.engine.model.config import ModelConfig, Rope, Routing
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.weights import WeightError
from arc.kernels import Target, resolve

CPU = torch.device("cpu")
PAGE = 4


class DictSource:
    """A checkpoint held as a dictionary of tensors under the hub's names."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.tensors = tensors
        self.dtype = dtype
        self.asked: list[str] = []

    def get(self, name, shape, *, dtype=None, rows=None):
        if name not in self.tensors:
            raise WeightError(f"missing {name}")
        tensor = self.tensors[name]
        if tuple(tensor.shape) != tuple(shape):
            raise WeightError(f"{name} is {tuple(tensor.shape)}, not {shape}")
        self.asked.append(name)
        return (tensor if rows is None else tensor[rows]).to(dtype or self.dtype)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def finish(self) -> None:
        extra = self.tensors.keys() - set(self.asked)
        if extra:
            raise WeightError(f"nobody asked for {sorted(extra)}")


@dataclass(frozen=True)
class Case:
    """One checkpoint shape. What is not named is small and ordinary."""

    name: str
    version: int  # deepseek_v2 or deepseek_v3
    heads: int = 4
    q_lora_rank: int | None = 24
    kv_lora_rank: int = 16
    nope: int = 8
    rope: int = 8
    v: int = 12
    layers: int = 3
    first_dense: int = 1
    moe_layers: tuple[bool, ...] | None = None  # other than transformers can say: moe_layer_freq
    experts: int = 8
    top_k: int = 2
    shared: int = 1
    groups: int = 1
    top_groups: int = 1
    greedy: bool = False
    normalise: bool = True
    scale: float = 2.5
    interleaved: bool = True
    yarn: dict[str, Any] = field(default_factory=dict)
    tied: bool = False
    bias: bool = False
    eps: float = 1e-6

    hidden: int = 32
    vocab: int = 97
    max_position: int = 512

    def moe(self) -> tuple[bool, ...]:
        return self.moe_layers or tuple(n >= self.first_dense for n in range(self.layers))

    def config(self) -> ModelConfig:
        scale = (self.nope + self.rope) ** -0.5
        rope = Rope(10000.0, self.rope, self.interleaved or self.version == 2)
        if self.yarn:
            mscale, all_dim = self.yarn.get("mscale", 0.0), self.yarn.get("mscale_all_dim", 0.0)
            if all_dim:
                scale *= (0.1 * all_dim * math.log(self.yarn["factor"]) + 1) ** 2
            both = bool(mscale and all_dim)  # as transformers reads them
            rope = Rope(
                10000.0,
                self.rope,
                rope.interleaved,
                "yarn",
                factor=self.yarn["factor"],
                original_max_position=self.yarn["original_max_position_embeddings"],
                beta_fast=self.yarn.get("beta_fast", 32.0),
                beta_slow=self.yarn.get("beta_slow", 1.0),
                mscale=mscale if both else 1.0,
                mscale_all_dim=all_dim if both else 0.0,
            )
        method = "greedy" if self.greedy else "group_max" if self.version == 2 else "group_top2"
        routing = Routing(
            scoring="softmax" if self.version == 2 else "sigmoid",
            experts=self.experts,
            top_k=self.top_k,
            groups=self.groups,
            top_groups=self.top_groups,
            method=method,
            bias=self.version == 3,
            normalise=self.normalise and self.version == 3,
            scale=self.scale,
        )
        return ModelConfig(
            model_type="deepseek_v2" if self.version == 2 else "deepseek_v3",
            vocab_size=self.vocab,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            nope_dim=self.nope,
            rope_dim=self.rope,
            v_dim=self.v,
            dense_intermediate=40,
            expert_intermediate=20,
            shared_experts=self.shared,
            moe_layers=self.moe(),
            routing=routing if any(self.moe()) else None,
            rope=rope,
            rms_eps=self.eps,
            attention_bias=self.bias,
            tied_embeddings=self.tied,
            max_position=self.max_position,
            prediction_layers=0,
            dtype="float32",
            fp8_block=None,
            softmax_scale=scale,
        )

    def oracle(self) -> transformers.PreTrainedModel:
        """transformers' model with every parameter and buffer random, norms and gate biases included."""
        torch.manual_seed(len(self.name) + 100 * self.version)
        shape: dict[str, Any] = {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": 40,
            "moe_intermediate_size": 20,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "n_shared_experts": self.shared,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "routed_scaling_factor": self.scale,
            "kv_lora_rank": self.kv_lora_rank,
            "q_lora_rank": self.q_lora_rank,
            "qk_rope_head_dim": self.rope,
            "qk_nope_head_dim": self.nope,
            "v_head_dim": self.v,
            "n_group": self.groups,
            "topk_group": self.top_groups,
            "first_k_dense_replace": self.first_dense,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.bias,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "yarn" if self.yarn else "default",
                **self.yarn,
            },
            "attn_implementation": "eager",
            "experts_implementation": "eager",
        }
        if self.version == 2:
            method = "greedy" if self.greedy else "group_limited_greedy"
            config = transformers.DeepseekV2Config(**shape, topk_method=method)
            model = transformers.DeepseekV2ForCausalLM(config)
        else:
            config = transformers.DeepseekV3Config(
                **shape,
                rope_interleave=self.interleaved,
                norm_topk_prob=self.normalise,
                num_mtp_layers=0,
            )
            model = transformers.DeepseekV3ForCausalLM(config)
        if self.moe_layers is not None:  # transformers knows no moe_layer_freq: exchange the MLPs
            mlps = {type(layer.mlp): type(layer.mlp) for layer in model.model.layers}
            dense, moe = sorted(mlps, key=lambda kind: kind.__name__.endswith("MLP"), reverse=True)
            for layer, has_experts in zip(model.model.layers, self.moe_layers, strict=True):
                layer.mlp = moe(config) if has_experts else dense(config)
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if name.endswith("inv_freq"):
                    continue
                if "norm" in name:
                    tensor.uniform_(0.5, 1.5)
                elif name.endswith("e_score_correction_bias"):
                    tensor.uniform_(-0.4, 0.4)
                elif "gate.weight" in name:
                    tensor.normal_(std=0.5)
                elif "embed" in name or "head" in name:
                    tensor.normal_(std=0.7)
                else:
                    tensor.normal_(std=0.25)
        return model.eval()


def hub_tensors(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors under the names that checkpoints on the hub have: experts one by one."""
    return dict(_hub_tensors(model))


def _hub_tensors(model: transformers.PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for number, both in enumerate(tensor):
                gate, up = both.chunk(2)
                yield name.replace("gate_up_proj", f"{number}.gate_proj.weight"), gate
                yield name.replace("gate_up_proj", f"{number}.up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            for number, down in enumerate(tensor):
                yield name.replace("down_proj", f"{number}.down_proj.weight"), down
        elif not (".shared_experts." in name and not tensor.numel()):
            if name == "lm_head.weight" and model.config.tie_word_embeddings:
                continue
            yield name, tensor


def build(
    case: Case,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> DeepseekModel:
    source = DictSource(tensors, dtype)
    kernels = resolve(backend, Target(CPU, dtype))
    model = DeepseekModel(case.config(), source, dtype=dtype, device=CPU, kernels=kernels)
    source.finish()
    return model


class Runner:
    """Rows of tokens over one cache, laid out as the engine would, with pages in an order of the test's choice."""

    def __init__(self, model: DeepseekModel, pages: int = 64, page_size: int = PAGE, seed: int = 0) -> None:
        config = model.config
        self.model = model
        self.page_size = page_size
        self.cache = LatentCache(
            config.layers, pages, page_size, config.latent_width, dtype=model.dtype, device=CPU
        )
        order = torch.Generator().manual_seed(seed)
        # Page 0 is never given out: block tables are padded with it, and it must not matter what it holds.
        self.free = [1 + int(n) for n in torch.randperm(pages - 1, generator=order)]
        self.pages: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def share(self, row: str, other: str, tokens: int) -> None:
        """`row` starts with the whole pages that hold the first `tokens` of `other`."""
        assert tokens % self.page_size == 0
        self.pages[row] = self.pages[other][: tokens // self.page_size]
        self.computed[row] = tokens

    def step(
        self, decode: Mapping[str, int], prompt: Mapping[str, list[int]] | None = None
    ) -> dict[str, torch.Tensor]:
        """One forward: decode rows with a token each, prompt rows with some; gives the logits of every token."""
        rows = [*((row, [token]) for row, token in decode.items()), *(prompt or {}).items()]
        output = self.model.forward(self.batch(rows, len(decode)), self.cache)
        return dict(
            zip((row for row, _ in rows), output.logits.split([len(t) for _, t in rows]), strict=True)
        )

    def batch(self, rows: list[tuple[str, list[int]]], decode_rows: int) -> ForwardBatch:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        lengths: list[int] = []
        for row, tokens in rows:
            before = self.computed.get(row, 0)
            after = before + len(tokens)
            pages = self.pages.setdefault(row, [])
            while len(pages) * self.page_size < after:
                pages.append(self.free.pop())
            token_ids += tokens
            positions += range(before, after)
            slots += [
                pages[p // self.page_size] * self.page_size + p % self.page_size for p in range(before, after)
            ]
            starts.append(len(token_ids))
            lengths.append(after)
            self.computed[row] = after
        most = max(len(self.pages[row]) for row, _ in rows)
        tables = [self.pages[row] + [0] * (most - len(self.pages[row])) for row, _ in rows]
        return ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            block_tables=torch.tensor(tables),
            lengths=tuple(lengths),
            query_starts=tuple(starts),
            decode_rows=decode_rows,
            sample_tokens=torch.arange(len(token_ids)),
        )


def expected(oracle: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab]: transformers' logits of the whole sequence."""
    with torch.inference_mode():
        return oracle(input_ids=torch.tensor([tokens])).logits[0]


def assert_close(got: torch.Tensor, want: torch.Tensor, bound: float = 1e-4) -> None:
    """Within `bound` of each token's largest logit: the relative error that parity is judged by."""
    assert got.shape == want.shape
    error = ((got - want).abs().amax(-1) / want.abs().amax(-1)).max().item()
    assert error < bound, f"relative error {error:.2e}"


def tokens_of(case: Case, length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, case.vocab, (length,), generator=generator).tolist()


YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}

# Every value of every variant at least once, and the pairs that share code: query latent with biases and layouts,
# groups with gates, shared experts with both forms of the experts, YaRN's scales with both versions.
CASES = [
    Case("plain", 3),
    Case("no query latent", 3, q_lora_rank=None),
    Case("no query latent, biases", 3, q_lora_rank=None, bias=True, tied=True),
    Case("biases, halves", 3, bias=True, interleaved=False, heads=3),
    Case("halves without query latent", 3, q_lora_rank=None, interleaved=False, eps=1e-3),
    Case("groups", 3, experts=12, top_k=3, groups=4, top_groups=2, shared=2),
    Case("groups, all kept", 3, experts=12, top_k=5, groups=3, top_groups=3, normalise=False, scale=1.0),
    Case("many experts", 3, experts=24, top_k=2, groups=6, top_groups=2, shared=1, heads=5, first_dense=0),
    Case("many experts, none shared", 3, experts=20, top_k=1, shared=0, first_dense=2),
    Case("few experts, none shared", 3, experts=3, top_k=3, shared=0, scale=0.7),
    Case("one head, tied", 3, heads=1, nope=5, rope=4, v=7, kv_lora_rank=9, tied=True, eps=1e-5),
    Case("yarn", 3, yarn={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    Case("yarn, scales differ", 3, yarn={**YARN, "mscale": 1.0, "mscale_all_dim": 0.6}, interleaved=False),
    Case("yarn, no scale", 3, yarn=YARN, q_lora_rank=None, groups=2, top_groups=1, shared=3),
    Case("all dense", 3, first_dense=3, bias=True),
    Case("every other layer", 3, layers=4, moe_layers=(False, True, False, True), experts=9, top_k=2),
    Case("greedy", 2, greedy=True, shared=2, scale=1.0),
    Case(
        "greedy, no query latent",
        2,
        greedy=True,
        q_lora_rank=None,
        yarn={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    Case("best expert of a group", 2, experts=16, top_k=3, groups=4, top_groups=2, scale=16.0),
    Case(
        "best expert, biases", 2, experts=15, top_k=2, groups=5, top_groups=3, bias=True, heads=8, tied=True
    ),
    Case("many experts", 2, experts=18, top_k=2, groups=3, top_groups=1, shared=2, eps=1e-4, first_dense=0),
    Case("first layers with experts, then dense", 2, layers=3, moe_layers=(True, False, True), greedy=True),
]


def case_id(case: Case) -> str:
    return f"v{case.version} {case.name}"
