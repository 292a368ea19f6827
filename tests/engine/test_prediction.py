"""The prediction layer against the network that it was trained in, and how a checkpoint's tensors reach it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from arc.engine.carried import export
from arc.engine.carried.network import Network, Shape
from arc.engine.folder import CARRIED
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache, bytes_per_page
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.hf_config import read_config
from arc.engine.model.weights import WeightError
from arc.kernels import Target, resolve

from .deepseek_cases import CPU, DictSource

PAGE = 8


@pytest.fixture(scope="module")
def network() -> Network:
    return export.read(CARRIED, Shape()).eval()


def build(tensors: dict[str, torch.Tensor]) -> DeepseekModel:
    source = DictSource(tensors, torch.float32)
    kernels = resolve("auto", Target(CPU, torch.float32))
    model = DeepseekModel(read_config(CARRIED), source, dtype=torch.float32, device=CPU, kernels=kernels)
    source.finish()
    return model


def cache_of(model: DeepseekModel) -> LatentCache:
    config = model.config
    return LatentCache(
        config.layers, 9, PAGE, config.latent_width, dtype=torch.float32, device=CPU, prediction=True
    )


def batch(tokens: list[int], start: int, decode: bool) -> ForwardBatch:
    places = torch.arange(start, start + len(tokens))
    return ForwardBatch(
        token_ids=torch.tensor(tokens),
        positions=places,
        slots=places + PAGE,
        block_tables=torch.arange(1, 9)[None],
        lengths=(start + len(tokens),),
        query_starts=(0, len(tokens)),
        decode_rows=int(decode),
        sample_tokens=torch.arange(len(tokens)),
    )


@torch.inference_mode()
def test_drafts_are_those_of_the_network_it_was_trained_in(network: Network) -> None:
    """By prompt chunks, then by several decode queries, then a chain of two: the ways that the engine takes."""
    model = build(export.tensors(network))
    assert model.prediction is not None
    cache = cache_of(model)
    tokens = torch.randint(2, 2048, (40,), generator=torch.Generator().manual_seed(3))
    states = network(tokens[None])
    want = network.mtp(states, network.embed_tokens(tokens[None]), 2)
    hidden = model.forward(batch(tokens.tolist(), 0, decode=False), cache).hidden
    torch.testing.assert_close(hidden, states[0], atol=2e-4, rtol=2e-4)
    following = tokens.tolist()[1:]
    parts = [
        model.prediction.forward(batch(following[start:end], start, decode), hidden[start:end], cache)
        for start, end, decode in (
            (0, 17, False),
            (17, 30, False),
            (30, 32, True),
            (32, 33, True),
            (33, 36, True),
        )
    ]
    got = torch.cat([part.hidden for part in parts])
    torch.testing.assert_close(got, want[0][0, :36], atol=1e-3, rtol=1e-3)
    ids = torch.cat([part.token_ids for part in parts])
    assert ids.tolist() == network.lm_head(want[0][0, :36]).argmax(-1).tolist()
    # depth 2 joins depth 1's state at 35 with the token at 37, in the slot behind it
    second = model.prediction.forward(batch([following[36]], 36, decode=True), got[-1:], cache)
    torch.testing.assert_close(second.hidden[0], want[1][0, 35], atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_a_layer_with_an_embedding_and_a_head_of_its_own_uses_them(network: Network) -> None:
    shared = export.tensors(network)
    own = shared | {
        "model.layers.4.embed_tokens.weight": shared["model.embed_tokens.weight"].flip(0),
        "model.layers.4.shared_head.head.weight": shared["lm_head.weight"].flip(0),
    }
    plain, other = build(shared), build(own)
    assert plain.prediction is not None and other.prediction is not None
    hidden = torch.randn(5, plain.config.hidden, generator=torch.Generator().manual_seed(0))
    tokens = [5, 9, 2, 800, 31]
    want = plain.prediction.forward(batch(tokens, 0, decode=False), hidden, cache_of(plain))
    mirrored = [2047 - token for token in tokens]
    got = other.prediction.forward(batch(mirrored, 0, decode=False), hidden, cache_of(other))
    torch.testing.assert_close(got.hidden, want.hidden)
    assert got.token_ids.tolist() == [2047 - token for token in want.token_ids.tolist()]


def test_a_folder_without_the_layers_tensors_has_none_and_a_part_of_them_is_an_error(
    network: Network,
) -> None:
    whole = export.tensors(network)
    without = {name: tensor for name, tensor in whole.items() if "layers.4." not in name}
    assert build(without).prediction is None
    with pytest.raises(WeightError, match="hnorm"):
        build({name: tensor for name, tensor in whole.items() if "hnorm" not in name})


def test_its_latents_are_part_of_a_page() -> None:
    config = read_config(CARRIED)
    cache = LatentCache(4, 3, PAGE, config.latent_width, dtype=torch.bfloat16, device=CPU, prediction=True)
    assert cache.prediction is not None
    held = sum(layer.nbytes for layer in (*cache.layers, cache.prediction))
    assert held == 3 * bytes_per_page(config, PAGE, torch.bfloat16, prediction=True)
    plain = dataclasses.replace(config, layers=5)
    assert bytes_per_page(plain, PAGE, torch.bfloat16) == held // 3
    cache.prediction[:] = 7.0
    cache.zero_pages([1])
    assert cache.prediction.view(3, -1).sum(1).bool().tolist() == [True, False, True]
