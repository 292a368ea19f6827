"""Weights by name and slice: every layout gives the same tensors, and every damaged folder one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.folder import CheckpointError
from arc.engine.model.checkpoint import Checkpoint, serving_dtype
from arc.engine.model.config import ModelConfig
from arc.engine.model.fp8 import dequantise_rows, scale_shape
from arc.engine.model.hf_config import read_config
from arc.engine.model.weights import WeightError
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import DeepseekV3ForCausalLM

from ..peers.make_checkpoint import TINY, random_weights, shapes

CPU = torch.device("cpu")
BLOCK = (128, 128)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(TINY, seed=1)


def write_config(folder: Path, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(TINY | changes), encoding="utf-8")
    return read_config(folder)


def save_single(folder: Path, weights: Weights) -> None:
    save_file(weights, folder / "model.safetensors")


def save_sharded(folder: Path, weights: Weights, shards: int = 3) -> None:
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        held = {key: weights[key] for key in sorted(weights)[shard::shards]}
        save_file(held, folder / name)
        weight_map |= dict.fromkeys(held, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def save_fused(folder: Path, weights: Weights) -> None:
    """As transformers holds them in memory, and saves them when asked not to use the hub's layout."""
    fused = {name: tensor for name, tensor in weights.items() if ".mlp.experts." not in name}
    for layer in range(TINY["first_k_dense_replace"], TINY["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = [
            {
                projection: weights[f"{prefix}.{expert}.{projection}.weight"]
                for projection in ("gate_proj", "up_proj", "down_proj")
            }
            for expert in range(TINY["n_routed_experts"])
        ]
        fused[f"{prefix}.gate_up_proj"] = torch.stack(
            [torch.cat([e["gate_proj"], e["up_proj"]]) for e in experts]
        )
        fused[f"{prefix}.down_proj"] = torch.stack([e["down_proj"] for e in experts])
    save_file(fused, folder / "model.safetensors")


SAVED = {"single": save_single, "sharded": save_sharded, "fused": save_fused}


def open_checkpoint(folder: Path, config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    return Checkpoint(folder, config, dtype=dtype, device=CPU)


def read_all(source: Checkpoint) -> Weights:
    read = {name: source.get(name, shape) for name, shape in shapes(TINY).items()}
    source.finish()
    return read


@pytest.fixture
def single(tmp_path: Path, weights: Weights) -> Checkpoint:
    save_single(tmp_path, weights)
    return open_checkpoint(tmp_path, write_config(tmp_path))


# What is read


@pytest.mark.parametrize("layout", SAVED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_every_layout_gives_the_same_tensors(
    tmp_path: Path, weights: Weights, layout: str, dtype: torch.dtype
) -> None:
    SAVED[layout](tmp_path, weights)
    read = read_all(open_checkpoint(tmp_path, write_config(tmp_path), dtype))
    assert read.keys() == weights.keys()
    for name, tensor in read.items():
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert torch.equal(tensor, weights[name].to(dtype)), name


@pytest.mark.parametrize("original", [True, False])
def test_what_transformers_saves_is_read(tmp_path: Path, weights: Weights, original: bool) -> None:
    save_single(tmp_path, weights)
    write_config(tmp_path)
    model = DeepseekV3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", save_original_format=original, max_shard_size="200KB")
    read = read_all(open_checkpoint(tmp_path / "saved", read_config(tmp_path / "saved")))
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()
    for name, tensor in read.items():
        assert torch.equal(tensor, weights[name]), name


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_rows_are_those_of_the_whole(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows, columns = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 5)))
    stored = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    wanted = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    whole = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(stored)
    folder = tmp_path_factory.mktemp("rows")
    save_single(folder, {"before": torch.ones(3), "w": whole, "x": torch.ones(2)})
    bounds = st.none() | st.integers(-10, 10)
    cut = slice(data.draw(bounds), data.draw(bounds))
    source = open_checkpoint(folder, write_config(folder))
    assert torch.equal(source.get("w", (rows, columns), dtype=wanted, rows=cut), whole[cut].to(wanted))


def test_vectors_and_scalars(tmp_path: Path) -> None:
    save_single(
        tmp_path, {"vector": torch.arange(7.0), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    )
    source = open_checkpoint(tmp_path, write_config(tmp_path), torch.float32)
    assert torch.equal(source.get("vector", (7,), rows=slice(2, 5)), torch.tensor([2.0, 3.0, 4.0]))
    assert torch.equal(source.get("scalar", ()), torch.tensor(2.5))
    assert source.get("empty", (0, 4)).shape == (0, 4)
    with pytest.raises(ValueError, match="step 1"):
        source.get("vector", (7,), rows=slice(0, 7, 2))


def test_a_tensor_larger_than_the_buffer_is_converted_whole(tmp_path: Path) -> None:
    large = torch.randn(700, 4099)  # 11 MB: three buffers, and a last one that is not full
    save_single(tmp_path, {"large": large})
    source = open_checkpoint(tmp_path, write_config(tmp_path), torch.bfloat16)
    assert torch.equal(source.get("large", (700, 4099)), large.to(torch.bfloat16))
    assert torch.equal(source.get("large", (700, 4099), dtype=torch.float32), large)


def test_serving_dtype(tmp_path: Path) -> None:
    config = write_config(tmp_path, torch_dtype="float16")
    assert serving_dtype("auto", config) == torch.float16
    assert serving_dtype("float32", config) == torch.float32


def test_progress_counts_every_needed_byte_once(tmp_path: Path, weights: Weights) -> None:
    extra = {"model.layers.3.shared_head.norm.weight": torch.ones(64)}
    save_sharded(tmp_path, weights | extra)
    seen: list[tuple[int, int]] = []
    source = Checkpoint(
        tmp_path,
        write_config(tmp_path, num_nextn_predict_layers=1),
        dtype=torch.float32,
        device=CPU,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(tensor.nbytes for tensor in weights.values())
    read_all(source)
    source.get("lm_head.weight", (512, 64))  # a second time
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {of for _, of in seen} == {total}
    assert seen[-1] == (total, total)


# fp8


def quantise(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 blocks and their scales, block by block."""
    rows, columns = weight.shape
    scale = torch.empty(scale_shape((rows, columns), block))
    quantised = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = (
                slice(i * block[0], (i + 1) * block[0]),
                slice(j * block[1], (j + 1) * block[1]),
            )
            scale[i, j] = weight[at].abs().max() / 448
            quantised[at] = (weight[at] / scale[i, j]).to(torch.float8_e4m3fn)
    return quantised, scale


def plain_dequantised(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Element by element, as the definition reads."""
    out = torch.empty(weight.shape)
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            out[row, column] = weight[row, column].float() * scale[row // block[0], column // block[1]]
    return out


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(0, 11),
)
@settings(deadline=None, max_examples=60)
def test_dequantising_is_a_plain_loop(rows: int, columns: int, block: tuple[int, int], first: int) -> None:
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    weight = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(scale_shape((rows, columns), block), generator=generator)
    expected = plain_dequantised(weight, scale, block)
    first = min(first, rows)
    out = torch.empty(rows - first, columns)
    dequantise_rows(weight[first:], scale, block, first, out)
    assert torch.equal(out, expected[first:])


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [slice(None), slice(100, 300), slice(256, 257), slice(300, 10)])
def test_fp8_is_dequantised_at_load(tmp_path: Path, scale_dtype: torch.dtype, cut: slice) -> None:
    weight = torch.randn(
        300, 200, generator=torch.Generator().manual_seed(0)
    )  # no side is a whole number of blocks
    quantised, scale = quantise(weight, BLOCK)
    scale = scale.to(scale_dtype)
    save_single(tmp_path, {"a.weight": quantised, "a.weight_scale_inv": scale})
    source = open_checkpoint(tmp_path, write_config(tmp_path, quantization_config=FP8))
    read = source.get("a.weight", (300, 200), rows=cut)
    expanded = scale.float().repeat_interleave(128, 0)[:300].repeat_interleave(128, 1)[:, :200]
    expected = (quantised.float() * expanded).to(torch.bfloat16)
    assert torch.equal(read, expected[cut])
    assert torch.allclose(read.float(), weight[cut], rtol=0.07, atol=0.01)
    source.finish()


def test_a_large_fp8_matrix_is_dequantised_in_pieces(tmp_path: Path) -> None:
    quantised, scale = quantise(torch.randn(1500, 1100), BLOCK)  # rows of a piece end inside a block
    save_single(tmp_path, {"a.weight": quantised, "a.weight_scale_inv": scale})
    source = open_checkpoint(tmp_path, write_config(tmp_path, quantization_config=FP8), torch.float32)
    expanded = scale.repeat_interleave(128, 0)[:1500].repeat_interleave(128, 1)[:, :1100]
    assert torch.equal(source.get("a.weight", (1500, 1100)), quantised.float() * expanded)


def test_fp8_faults_are_named(tmp_path: Path) -> None:
    quantised, scale = quantise(torch.randn(130, 4), BLOCK)
    save_single(
        tmp_path,
        {
            "a.weight": quantised,
            "b.weight": quantised.clone(),
            "b.weight_scale_inv": scale[:1],
            "c": torch.ones(2, 2),
        },
    )
    source = open_checkpoint(tmp_path, write_config(tmp_path, quantization_config=FP8))
    with pytest.raises(WeightError, match=r"no a\.weight_scale_inv"):
        source.get("a.weight", (130, 4))
    with pytest.raises(WeightError, match=r"b\.weight_scale_inv has shape \[1, 1\]; .* \[2, 1\]"):
        source.get("b.weight", (130, 4))
    unquantised = open_checkpoint(tmp_path, write_config(tmp_path))
    with pytest.raises(WeightError, match=r"b\.weight is stored as F8_E4M3"):
        unquantised.get("b.weight", (130, 4))


# What is asked for


def test_missing_misshapen_and_other_types(tmp_path: Path) -> None:
    save_single(tmp_path, {"model.norm.weight": torch.ones(4), "ids": torch.ones(4, dtype=torch.int32)})
    source = open_checkpoint(tmp_path, write_config(tmp_path))
    assert source.has("model.norm.weight")
    assert not source.has("model.norms.weight")
    with pytest.raises(WeightError, match=r"no model\.norms\.weight.*nearest is model\.norm\.weight"):
        source.get("model.norms.weight", (4,))
    with pytest.raises(WeightError, match=r"has shape \[4\]; .* for \[5\]"):
        source.get("model.norm.weight", (5,))
    with pytest.raises(WeightError, match=r"ids is stored as I32"):
        source.get("ids", (4,))


def test_unasked_tensors_are_named(single: Checkpoint, weights: Weights) -> None:
    for name in sorted(weights)[:-7]:
        single.get(name, tuple(weights[name].shape))
    with pytest.raises(WeightError) as refused:
        single.finish()
    assert all(name in str(refused.value) for name in sorted(weights)[-7:-2])
    assert "and 2 more" in str(refused.value)


def test_one_unasked_fused_expert_is_named(tmp_path: Path, weights: Weights) -> None:
    save_fused(tmp_path, weights)
    source = open_checkpoint(tmp_path, write_config(tmp_path))
    left = "model.layers.2.mlp.experts.5.up_proj.weight"
    for name, shape in shapes(TINY).items():
        if name != left:
            source.get(name, shape)
    with pytest.raises(WeightError, match=left):
        source.finish()


def test_harmless_extras(tmp_path: Path, weights: Weights) -> None:
    extras = {
        "model.layers.3.embed_tokens.weight": torch.ones(2),
        "model.layers.3.self_attn.q_a_proj.weight_scale_inv": torch.ones(2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    save_single(tmp_path, weights | extras)
    read_all(open_checkpoint(tmp_path, write_config(tmp_path, num_nextn_predict_layers=1)))
    with pytest.raises(WeightError, match=r"model\.layers\.3\.embed_tokens"):
        read_all(open_checkpoint(tmp_path, write_config(tmp_path)))


def test_a_head_is_harmless_only_when_tied(tmp_path: Path, weights: Weights) -> None:
    save_single(tmp_path, weights)
    for tied in (True, False):
        source = open_checkpoint(tmp_path, write_config(tmp_path, tie_word_embeddings=tied))
        for name, tensor in weights.items():
            if name != "lm_head.weight":
                source.get(name, tuple(tensor.shape))
        if tied:
            source.finish()
        else:
            with pytest.raises(WeightError, match=r"lm_head\.weight"):
                source.finish()


# Damaged folders


def opening_fails(folder: Path, match: str) -> None:
    config = write_config(folder)
    with pytest.raises(CheckpointError, match=match):
        open_checkpoint(folder, config)


def test_no_weights(tmp_path: Path) -> None:
    opening_fails(tmp_path, r"neither model\.safetensors nor model\.safetensors\.index\.json")
    (tmp_path / "consolidated.safetensors").touch()
    opening_fails(tmp_path, r"only consolidated\.safetensors")


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    opening_fails(tmp_path, r"pytorch_model\.bin may be pickles.*refused")


def test_single_and_index_together_are_refused(tmp_path: Path, weights: Weights) -> None:
    save_single(tmp_path, weights)
    save_sharded(tmp_path, weights)
    opening_fails(tmp_path, "both")


def test_a_missing_shard_is_named(tmp_path: Path, weights: Weights) -> None:
    save_sharded(tmp_path, weights)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    opening_fails(tmp_path, r"model-00002-of-00003\.safetensors")


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ("{}", "weight_map"),
        ('{"weight_map": []}', "weight_map"),
        ('{"weight_map": {"a": 3}}', r"weight_map\.a is 3"),
        ('{"weight_map": {"a": "../model-1.safetensors"}}', r"weight_map\.a"),
        ('{"weight_map": {"a": "/etc/passwd"}}', r"weight_map\.a"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', r"weight_map\.a"),
        ("{", "not valid JSON"),
    ],
)
def test_a_bad_index_is_named(tmp_path: Path, index: str, match: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    opening_fails(tmp_path, match)


def test_an_index_that_contradicts_its_shards(tmp_path: Path, weights: Weights) -> None:
    save_sharded(tmp_path, weights)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = sorted(weights)[0]
    for name, shard, match in (
        ("no.such", "model-00001-of-00003.safetensors", "do not hold them: no.such"),
        (first, "model-00002-of-00003.safetensors", first),
    ):
        path.write_text(json.dumps({"weight_map": index["weight_map"] | {name: shard}}))
        opening_fails(tmp_path, match)


def test_a_tensor_in_two_shards(tmp_path: Path, weights: Weights) -> None:
    save_sharded(tmp_path, weights)
    twice = sorted(weights)[1]
    path = tmp_path / "model-00001-of-00003.safetensors"
    held = {name: weights[name] for name in sorted(weights)[0::3]}
    save_file(held | {twice: weights[twice]}, path)
    opening_fails(tmp_path, f"both hold {twice}")


def test_experts_both_fused_and_apart(tmp_path: Path, weights: Weights) -> None:
    fused = {"model.layers.1.mlp.experts.down_proj": torch.zeros(8, 64, 32)}
    save_single(tmp_path, weights | fused)
    opening_fails(tmp_path, "both fused and apart")
    save_single(tmp_path, {"model.layers.1.mlp.experts.gate_up_proj": torch.zeros(8, 63, 32)})
    opening_fails(tmp_path, r"gate_up_proj has shape \[8, 63, 32\]")


def test_a_git_lfs_pointer_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    opening_fails(tmp_path, "Git LFS pointer")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save_single(tmp_path, {"a": torch.arange(6.0), "b": torch.ones(2, 2)})
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        opening_fails(tmp_path, r"model\.safetensors is not a whole safetensors file")
    path.write_bytes(whole + b"\0")
    opening_fails(tmp_path, r"model\.safetensors is not a whole safetensors file")


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_damaged_header_is_refused_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any byte of the header changed: the file is refused, or it still describes tensors within its bytes."""
    folder = tmp_path_factory.mktemp("damaged")
    save_single(folder, {"a": torch.arange(6.0), "b": torch.ones(2, 2)})
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    config = write_config(folder)
    try:
        source = open_checkpoint(folder, config)
        for name, shape in (("a", (6,)), ("b", (2, 2))):
            if source.has(name):
                source.get(name, shape)
    except CheckpointError as error:
        assert str(folder) in str(error)


def test_a_file_cut_short_under_the_reader_fails_that_read(tmp_path: Path, single: Checkpoint) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"ends before its last tensor"):
        read_all(single)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        read_all(single)


# Memory

PEAK = """
import re, sys
from pathlib import Path
import torch
from arc.engine.model.checkpoint import Checkpoint
from arc.engine.model.hf_config import read_config

def kib(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

folder, count = Path(sys.argv[1]), int(sys.argv[2])
config = read_config(folder)
before = kib("VmRSS")
source = Checkpoint(folder, config, dtype=torch.bfloat16, device=torch.device("cpu"))
held = [source.get(f"w{i}", (1024, 2048)) for i in range(count)]
held.append(source.get("large", (16384, 1024)))
print(before, kib("VmHWM"), sum(t.nbytes for t in held) // 1024)
"""


@pytest.mark.parametrize("stored", ["bfloat16", "float32", "float8_e4m3fn"])
def test_peak_memory_is_the_weights(tmp_path: Path, stored: str) -> None:
    """Loading holds the weights and little more. The peak is of the whole resident set, mapped pages included."""
    count, dtype = 40, getattr(torch, stored)
    weights = {f"w{i}": torch.ones(1024, 2048, dtype=dtype) for i in range(count)}
    weights["large"] = torch.ones(16384, 1024, dtype=dtype)
    scales = {
        f"{name}.weight_scale_inv": torch.ones(scale_shape(t.shape, BLOCK)) for name, t in weights.items()
    }
    save_single(tmp_path, weights | (scales if stored == "float8_e4m3fn" else {}))
    del weights
    write_config(tmp_path, quantization_config=FP8)
    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    before, peak, held = (int(field) for field in result.stdout.split())
    assert held > 180 * 1024
    assert peak - before < 1.15 * held
