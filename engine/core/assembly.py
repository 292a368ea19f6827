"""Builds one engine from its settings. The only place that knows all the parts."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...kernels.dispatch import KernelSet, Resolution, resolve
from ...kernels.operations import Target
from ..config import Settings
from ..control.events import EventLog
from ..control.protocol import NA, MemoryPart
from ..control.recorder import Recorder
from ..folder import CheckpointError, model_folder
from ..memory.allocator import Allocator
from ..memory.governor import CacheGovernor, TorchCuda
from ..memory.pool import HostPool
from ..model.cache import LatentCache, bytes_per_page, slot_of
from ..model.checkpoint import Checkpoint, serving_dtype
from ..model.config import ModelConfig
from ..model.deepseek import DeepseekModel
from ..model.dense import COPIES, DenseCache, DenseMlaDecode
from ..model.generation import GenerationDefaults, read_generation_defaults
from ..model.hf_config import read_config
from ..model.prediction import has_prediction
from ..profiler.cuda import CudaDevice
from ..profiler.profiler import Profiler
from ..sampling.sampler import Sampler
from ..scheduler.pages import PageManager
from ..scheduler.scheduler import Scheduler
from ..telemetry.records import AllocatorCounters, Counters
from ..text.chat import ChatTemplate
from ..text.tokenizer import Tokenizer
from ..version import revision, version
from . import capacity, graphs
from .ending import EndRules
from .engine import Engine
from .handle import LocalHandle
from .inbox import Inbox
from .interface import EngineInfo, KernelUse
from .layout import DenseLayout, Layout, PagedLayout
from .port import EnginePort, StepRing, scheduler_config
from .runner import Runner
from .sites import NOT_TIMED, sites_of

log = logging.getLogger("arc.engine")


@dataclass(frozen=True, slots=True)
class Text:
    """What the API needs to speak text: all of it may be missing from a folder of weights alone."""

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults


@dataclass(frozen=True, slots=True)
class Assembly:
    """One engine, built and not yet running."""

    info: EngineInfo
    handle: LocalHandle
    port: EnginePort
    engine: Engine
    text: Text
    kernels: KernelSet
    recorder: Recorder | NA

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.engine.run, name="arc-engine", daemon=True)
        thread.start()
        return thread


def device_of(settings: Settings) -> torch.device:
    """Raises ValueError when the settings name a card that is not there."""
    choice = settings.get_str("model.device")
    if choice == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(choice)
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ValueError(
            f"model.device = {choice}: torch sees {found} CUDA cards; cpu and auto are always there"
        )
    return device


def assemble(
    settings: Settings,
    *,
    progress: Callable[[int, int], None] | None = None,
    on_drained: Callable[[], None] = lambda: None,
    put_in_force: Callable[[Settings], None] = lambda _settings: None,
    recording: Path | None = None,
) -> Assembly:
    """Load the model and build the engine around it; nothing runs yet. `recording`: the flight recorder's file.

    Raises CheckpointError or WeightError for a folder that cannot be served, CapacityError when the memory does not
    hold what the settings ask for, KernelError or ValueError for a device or a backend that is not there.
    """
    folder = model_folder(settings.get_str("model.path"))
    config = read_config(folder)
    dtype, device = serving_dtype(settings.get_str("model.dtype"), config), device_of(settings)
    counters = Counters()
    allocator = _allocator(counters.allocator, device)
    latents = settings.get_str("cache.latents")
    target = Target(device, dtype, settings.get_str("kernels.weights"), allocator, latents)
    kernels = resolve(settings.get_str("kernels.backend"), target)
    log.info("kernels: %s", _who_runs_what(kernels))
    torch.set_num_threads(settings.get_int_or_none("cpu.threads") or _threads_of(kernels))
    source = Checkpoint(folder, config, dtype=dtype, device=device, progress=progress)
    dense: DenseCache | None = None
    if settings.get_str("cache.layout") == "dense":
        dense = DenseCache(config, prediction=has_prediction(config, source), dtype=dtype, device=device)
        kernels = over_dense(kernels, dense)
    model = DeepseekModel(config, source, dtype=dtype, device=device, kernels=kernels, buffers=allocator)
    source.finish()
    no_drafts = _why_no_drafts(model, config, settings.get_int("spec.depth"))
    predicts = model.prediction is not None
    text = Text(Tokenizer.load(folder), ChatTemplate.load(folder), read_generation_defaults(folder))
    page_size = settings.get_int("cache.page_size")
    sized = capacity.plan(
        free=capacity.free_memory(device),
        on_card=device.type == "cuda",
        page_bytes=bytes_per_page(config, page_size, dtype, predicts, latents),
        page_size=page_size,
        memory_mib=settings.get_int_or_none("cache.memory_mib"),
        max_running=settings.get_int("sched.max_running"),
        max_len=settings.get_int_or_none("model.max_len"),
        model_limit=config.max_position,
    )
    log.info("%d KV pages of %d tokens, %d MiB: %s", sized.pages, page_size, sized.bytes >> 20, sized.why)
    layout: Layout
    if dense is None:
        # A page stays where it is: there is nothing to put together.
        counters.copies = dict.fromkeys(COPIES, 0)
        layout = _paged(config, sized.pages, page_size, slot_of(config, dtype, latents), device, predicts)
    else:
        counters.copies = dense.done
        layout = DenseLayout(
            dense, device, strip=lambda: port.settings.get_str("cache.dead_prefix") == "strip"
        )
    info = _info(settings, folder, config, model, sized, kernels)
    eos = text.tokenizer.eos_ids if text.tokenizer is not None else text.defaults.eos_ids
    place = "host" if device.type == "cpu" else str(device)
    memory = (
        MemoryPart(component="weights", place=place, bytes=model.weight_bytes),
        MemoryPart(
            component="KV cache, reserved",
            place=place,
            reserved=True,
            bytes=sized.bytes if dense is None else NA("the dense layout allocates as batches form"),
        ),
    )
    recorder = _recorder(recording, info, settings)
    counters.pages_total = sized.pages
    inbox, ring = Inbox(), StepRing()
    events = EventLog(sink=None if isinstance(recorder, NA) else recorder.event)
    if not isinstance(recorder, NA):
        ring.opened, ring.closed = recorder.opened, recorder.closed
    handle = LocalHandle(info, counters, inbox, lambda: port.settings)
    sampler = Sampler(config.vocab_size, device, eos, kernels.sample)
    runner = Runner(model, layout, sampler, allocator, page_size, sized.max_model_len)
    runner.depth = settings.get_int("spec.depth")
    decode_graphs = _graphs(settings, model, layout, kernels, sized, page_size)
    runner.graphs = None if isinstance(decode_graphs, str) else decode_graphs
    engine = Engine(
        scheduler=Scheduler(PageManager(sized.pages, page_size), scheduler_config(settings)),
        runner=runner,
        inbox=inbox,
        counters=counters,
        rules=EndRules(eos, sized.max_model_len),
        deliver=handle.deliver,
        died=handle.died,
        observer=ring,
        events=events,
    )
    profiler = Profiler(
        lambda: sites_of(engine),
        stamps=kernels.stamps,
        device=_timed_device(device),
        not_timed=NOT_TIMED if kernels.stamps is None else {},
        publish=counters.set_span_seconds,
    )
    port = EnginePort(
        engine=engine,
        handle=handle,
        info=info,
        settings=settings,
        events=events,
        ring=ring,
        memory=memory,
        graphs=decode_graphs,
        profiler=profiler,
        allocator=allocator,
        put_in_force=put_in_force,
        on_drained=on_drained,
        no_drafts=no_drafts,
    )
    return Assembly(info, handle, port, engine, text, kernels, recorder)


def _paged(
    config: ModelConfig,
    pages: int,
    page_size: int,
    slot: tuple[int, torch.dtype],
    device: torch.device,
    predicts: bool,
) -> PagedLayout:
    """`pages` for sequences, and the null page."""
    width, dtype = slot
    cache = LatentCache(
        config.layers, pages + 1, page_size, width, dtype=dtype, device=device, prediction=predicts
    )
    return PagedLayout(cache, device)


def _info(
    settings: Settings,
    folder: Path,
    config: ModelConfig,
    model: DeepseekModel,
    sized: capacity.Capacity,
    kernels: KernelSet,
) -> EngineInfo:
    name = settings.get_str("model.name")
    return EngineInfo(
        name=settings.get_str("control.name"),
        model=folder.resolve().name if name == "auto" else name,
        model_path=str(folder),
        model_type=config.model_type,
        parameters=model.parameters,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        max_model_len=sized.max_model_len,
        vocab_size=config.vocab_size,
        page_size=settings.get_int("cache.page_size"),
        pages=sized.pages,
        version=version(),
        revision=revision(),
        pid=os.getpid(),
        started=time.time(),
        profile=settings.profile,
        kernels=tuple(
            KernelUse(operation=line.operation, backend=line.backend, refused=dict(line.refused))
            for line in kernels.table()
        ),
    )


def _graphs(
    settings: Settings,
    model: DeepseekModel,
    layout: Layout,
    kernels: KernelSet,
    sized: capacity.Capacity,
    page_size: int,
) -> graphs.DecodeGraphs | str:
    """Decode steps captured ahead, or why none are."""
    if not settings.get_bool("kernels.graphs"):
        return "kernels.graphs is off"
    if not isinstance(layout, PagedLayout):
        return "the dense layout's tensors change with each batch"
    built = graphs.build(
        model,
        layout.paged,
        kernels,
        most=settings.get_int("sched.max_running"),
        depth=settings.get_int("spec.depth"),
        pages=-(-sized.max_model_len // page_size),
        null_page=sized.pages,
    )
    if isinstance(built, str):
        log.info("no graphs: %s", built)
    return built


def over_dense(kernels: KernelSet, cache: DenseCache) -> KernelSet:
    """The same operations one by one, with decode attention over the dense layout in torch: no backend has it."""
    resolutions = tuple(
        Resolution(each.operation, "torch, dense layout", each.refused)
        if each.operation == "mla_decode"
        else each
        for each in kernels.resolutions
    )
    return replace(
        kernels, mla_decode=DenseMlaDecode(lambda: cache.columns), decoder=None, resolutions=resolutions
    )


def _why_no_drafts(model: DeepseekModel, config: ModelConfig, depth: int) -> str | None:
    """Why this checkpoint cannot speculate; None when it can. Raises CheckpointError where `depth` asks it to."""
    if model.prediction is not None:
        return None
    why = _missing_prediction(config)
    if depth:
        raise CheckpointError(f"spec.depth is {depth}, but {why}")
    return why


def _missing_prediction(config: ModelConfig) -> str:
    if not config.prediction_layers:
        return "the checkpoint has no prediction layer (its config.json says nothing of num_nextn_predict_layers)"
    missing = f"model.layers.{config.layers}.eh_proj.weight"
    return f"the checkpoint was saved without its prediction layer: {missing} is missing"


def _timed_device(device: torch.device) -> CudaDevice | NA:
    """The device whose own time the profiler tells from the host's."""
    if device.type == "cuda":
        return CudaDevice(device)
    return NA(f"{device.type} has no stream apart from the host")


def _threads_of(kernels: KernelSet) -> int:
    """cpu.threads = auto. A core that serves HTTP is a busy core. torch's OpenMP threads wait there for each other:
    over HTTP on two cores, one gave 1.4 to 1.8 times the tokens of two. Those of the C++ kernels take what work there
    is: two gave 1.2 to 2.1 times the tokens of one, and as many beside another process (docs/performance.md).
    """
    cores = len(os.sched_getaffinity(0))
    native = any(line.backend == "native" for line in kernels.table())
    return cores if native else max(1, cores - 1)


def _who_runs_what(kernels: KernelSet) -> str:
    """Each backend with its operations, and once each reason why another one does not run something."""
    backends = dict.fromkeys(line.backend for line in kernels.table())
    parts = [
        f"{name} runs {', '.join(line.operation for line in kernels.table() if line.backend == name)}"
        if len(backends) > 1
        else f"{name} runs everything"
        for name in backends
    ]
    parts[-1] += f", {'all layers in one call' if kernels.decoder else 'layer by layer'}"
    refusals = dict.fromkeys(refusal for line in kernels.table() for refusal in line.refused)
    return "; ".join([*parts, *(f"not {name}: {reason}" for name, reason in refusals)])


def _allocator(counters: AllocatorCounters, device: torch.device) -> Allocator:
    """Off until the port arms it, once the weights and the KV cache have taken their part of the memory."""
    if device.type == "cuda":
        return CacheGovernor(counters, TorchCuda(device), str(device))
    return HostPool(counters, free=lambda: capacity.free_memory(device))


def _recorder(path: Path | None, info: EngineInfo, settings: Settings) -> Recorder | NA:
    """An engine without a flight recorder is worth having, but not in silence."""
    if path is None:
        return NA("it was not asked for")
    try:
        return Recorder(path, info, settings.values())
    except OSError as error:
        log.warning("no flight recorder: %s: %s", path, error.strerror)
        return NA(f"{path}: {error.strerror}")
