"""Engine of real runs: vLLM's AsyncLLM.

Layout on a CPU: this process and one EngineCore with the worker inside it, one OpenMP thread (two
that share cores with anything else spin at each other's barriers and are many times slower).
`prepare_environment` must run before vllm is imported, `start` in the main thread (the engine
process dies with the thread that started it).

Versions are exact because a load is ordered: the scheduler is paused with requests kept, what the
engine had sampled is taken in, each live request's token count is its boundary, then the weights
are replaced. AsyncLLM's own pause sleeps 20 ms after the first of these steps; here the output
queue is awaited instead, which is both exact and shorter.
"""

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import psutil
from pydantic import ValidationError

from generators.engine import (
    NO_VERSION,
    DeltaFinish,
    EngineDeadError,
    GenerationRequest,
    LoadReport,
    RequestError,
    TokenDelta,
    WeightsBrokenError,
    WeightsRefusedError,
    mix,
)
from generators.engines.vllm_adapter import VllmAdapter
from generators.engines.vllm_gather import TOKENS_VARIABLE
from generators.engines.vllm_worker import OWNER_VARIABLE, record_open_files
from generators.engines.weights import Overtaken, WeightLayout, request_broadcast
from headrace.config.sections.learner import AdapterConfig
from headrace.data.image_processor import collapse_placeholders
from headrace.data.media import MediaStore, open_rgb
from headrace.errors import UserError
from headrace.host.memory import lasting
from headrace.host.shared_memory import EngineMemory
from headrace.protocol.messages.control import BroadcastReply, BroadcastRequest, WeightNotice
from headrace.protocol.transport.sockets import Link

_LOG = logging.getLogger("headrace.generator")
_FINISH: dict[str, DeltaFinish] = {"stop": "stop", "length": "length", "abort": "aborted"}
_SEED_BITS = 63
_BROADCAST_S = 60.0
"""Maximum time until the learner answers: it sends to one engine after the other."""
_NEVER = -100.0
"""Bias of the logits of tokens that must not be sampled; vLLM takes no less."""
_IMAGES = 64
"""Number of images that are kept decoded: answers to a prompt come together."""
PLUGIN, PLUGIN_FOLDER = "headrace", Path(__file__).with_name("vllm_plugin")
"""Name of the entry point in `vllm_plugin`, and the folder that any install has."""


@dataclass(frozen=True)
class VllmSettings:
    """Settings of AsyncLLM.

    `max_model_len`: prompt + response. `end_token_ids`: empty lets every response run to its limit
    (benchmarks). `kv_cache_gib` counts on a CPU only. `wide_head`: logits are computed in float32.
    `hot_tokens`: load the logits processor of requests with `fire`. `gathers`: the engine process
    sends a request's tokens by `stream_interval`, which vLLM by itself does not. `media`: the store
    of a run's images (None: the model reads text alone); `max_images` of a prompt; `banned_ids`:
    their placeholders, which are never sampled. `adapter`: versions are of it alone."""

    model: str
    max_model_len: int
    end_token_ids: tuple[int, ...]
    max_num_seqs: int = 128
    dtype: str = "float32"
    quantization: str | None = None
    kv_cache_gib: float = 1.0
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    enforce_eager: bool = True
    stream_interval: int = 8
    recompute_on_update: bool = False
    trust_remote_code: bool = False
    wide_head: bool = False
    on_gpu: bool = False
    hot_tokens: bool = False
    gathers: bool = True
    media: Path | None = None
    max_images: int = 1
    banned_ids: tuple[int, ...] = ()
    adapter: AdapterConfig | None = None


@dataclass(slots=True)
class _LiveRequest:
    """State of a request: next token's version, tokens taken, and boundaries ahead.

    Boundaries are (first token, version). `aborted`: it was asked to end, maybe before vLLM knew
    it. `hot`: its first token is hot."""

    version: int = NO_VERSION
    taken: int = 0
    boundaries: deque[tuple[int, int]] = field(default_factory=deque)
    aborted: bool = False
    hot: bool = False


def cache_folder() -> Path:
    """Return the folder of compiled helpers and fetched weights of all runs."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")


def prepare_environment(settings: VllmSettings) -> None:
    """Set vLLM's environment; the user's values win where they may. UserError: no cache folder."""
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            text = f"{cache} cannot be made ({error.strerror}): set HOME or HEADRACE_CACHE"
            raise UserError(text) from error
    # One pass over a step's outputs: boundaries are read between passes.
    os.environ["VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"] = str(max(128, settings.max_num_seqs))
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    os.environ[TOKENS_VARIABLE] = str(settings.stream_interval if settings.gathers else 1)
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CACHE_ROOT", str(cache / "vllm"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    if settings.hot_tokens:
        # The processor of hot tokens has the interface of the first model runner.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if Path(settings.model).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"
    if str(PLUGIN_FOLDER) not in sys.path:
        sys.path.append(str(PLUGIN_FOLDER))  # Spawned processes have the path of their parent.
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN not in plugins.split(","):
        os.environ["VLLM_PLUGINS"] = f"{plugins},{PLUGIN}"
    if settings.on_gpu:
        # A forked engine cannot use CUDA once its parent asked CUDA anything. The second variable
        # has torch ask NVML instead, and CUDA all the same where NVML does not answer.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # FlashInfer's sampler reports no logprobs of what is left after top-k and top-p, so that no
        # step could use it: it need not be compiled.
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)


def fork_engine(*, on_gpu: bool, tensor_parallel_size: int) -> None:
    """Have vLLM fork a CPU's engine from this process, which has imported all that it needs.

    Not one with several workers: forked, one outlived a killed generator by 2 s when tried.

    vLLM's configuration of a CPU asks for a new interpreter, whose imports take half of the start.
    The engine's OpenMP threads start in the child alone: here OMP_NUM_THREADS is 1."""
    if sys.platform != "linux" or on_gpu or tensor_parallel_size > 1:
        return
    import vllm.plugins

    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    vllm.plugins.plugins_loaded = False  # The child loads them, too.
    record_open_files()


async def engine_memory(engine: Any) -> tuple[int, EngineMemory]:
    """Return the process id of AsyncLLM's EngineCore, and its shared memory's record.

    UserError where the EngineCore did not load our entry point, which answers with the id."""
    try:
        pid = int(await engine.engine_core.call_utility_async("headrace_pid"))
    except Exception as error:  # any failure in the engine process arrives as a bare Exception
        if engine.errored:
            raise
        raise UserError(
            f"vLLM's EngineCore did not load the entry point {PLUGIN!r} of vllm.general_plugins, "
            "without which it outlives a killed generator; install the vLLM of requirements/*.lock"
        ) from error
    family = psutil.Process(pid).children(recursive=True)
    return pid, EngineMemory([os.getpid(), pid, *(process.pid for process in family)])


class VllmEngine:
    """See the module's docstring; the promises are those of `engine.Engine`."""

    def __init__(self, settings: VllmSettings, layout: WeightLayout) -> None:
        self.version = NO_VERSION
        self.pid: int | None = None
        """Process id of the engine."""
        self.recompute_on_update = settings.recompute_on_update
        self._settings, self._layout = settings, layout
        self._adapter = VllmAdapter(settings.adapter, layout) if settings.adapter else None
        self._engine: Any = None
        self._memory: EngineMemory | None = None
        self._live: dict[str, _LiveRequest] = {}
        self._loading = asyncio.Lock()
        self._open = asyncio.Event()
        """Event that is cleared while weights load, when nothing is submitted."""
        self._open.set()
        self._submitting = 0
        self._last_good: Path | None = None
        self._joined = self._given_up = ""
        """Source whose group the workers are in; source whose broadcast failed."""
        self._broken = False
        self.prefill_tokens = self.preempted = 0
        store = MediaStore(settings.media or Path())
        self._image = lru_cache(_IMAGES)(lambda digest: open_rgb(store.read(digest)))

    async def start(self) -> None:
        """Build the engine process and warm it up (seconds; blocks the event loop)."""
        prepare_environment(self._settings)
        with lasting():
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

        try:
            config = AsyncEngineArgs(**self._engine_args()).create_engine_config()
            s = self._settings
            fork_engine(on_gpu=s.on_gpu, tensor_parallel_size=s.tensor_parallel_size)
            self._engine = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        except ValueError as error:
            text = str(error)
            if isinstance(error, ValidationError):
                text = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            reason = text.strip().partition("\n")[0]
            raise UserError(
                f"vLLM does not take these settings of [generator] and [model]: {reason}"
            ) from error
        # The first request with logprobs compiles a helper: seconds that no trajectory should wait.
        warm_up = GenerationRequest("warm-up", [1, 2, 3], max_tokens=2, seed=1)
        async for _ in self.generate(warm_up):
            pass
        self.prefill_tokens = 0
        self.pid, self._memory = await engine_memory(self._engine)

    def _engine_args(self) -> dict[str, Any]:
        s = self._settings
        place: dict[str, Any] = {"gpu_memory_utilization": s.gpu_memory_utilization}
        if not s.on_gpu:
            # A prompt prefilled in pieces makes vLLM rewind the request's random generator, which a
            # CPU generator cannot do: the engine dies. So prompts go in whole.
            place = {
                "kv_cache_memory_bytes": int(s.kv_cache_gib * 2**30),
                "enable_chunked_prefill": False,
                # vLLM's 128 there share no shorter prompt with its group.
                "block_size": 32,
            }
        if s.wide_head:
            place["hf_overrides"] = {"head_dtype": "float32"}
        if s.media is not None:
            # Prompts have one placeholder per image: vLLM's processor, which needs the model's
            # tokenizer, inserts the others.
            place["limit_mm_per_prompt"] = {"image": s.max_images, "video": 0}
        if self._adapter is not None:
            place |= self._adapter.engine_args
        if s.hot_tokens:
            place["logits_processors"] = ["generators.engines.vllm_fire:HotToken"]
        return place | {
            "model": s.model,
            "skip_tokenizer_init": s.media is None,
            "trust_remote_code": s.trust_remote_code,
            "dtype": s.dtype,
            "quantization": s.quantization,
            "max_model_len": s.max_model_len,
            "max_num_seqs": s.max_num_seqs,
            "enforce_eager": s.enforce_eager,
            "tensor_parallel_size": s.tensor_parallel_size,
            "stream_interval": s.stream_interval,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "worker_extension_cls": "generators.engines.vllm_worker.WeightLoader",
        }

    @property
    def raw(self) -> Any:
        """AsyncLLM itself, for benchmarks that compare with it."""
        return self._engine

    def sampling_params(self, request: GenerationRequest) -> Any:
        """Return vLLM's parameters of a request: sampled logprobs, no detokenization."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = mix(request.seed, request.position) & ((1 << _SEED_BITS) - 1)
        return SamplingParams(
            max_tokens=request.max_tokens,
            seed=seed,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop_token_ids=list(self._settings.end_token_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            logit_bias=dict.fromkeys(self._settings.banned_ids, _NEVER) or None,
            extra_args=self._extra_args(request),
        )

    def _extra_args(self, request: GenerationRequest) -> dict[str, Any] | None:
        """Return the hot-token processor's input, which no sampling setting can replace."""
        if request.fire is None:
            return None
        from generators.engines.vllm_fire import EXTRA_ARG

        return {EXTRA_ARG: msgspec.to_builtins(request.fire)}

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        if len(request.prompt_ids) >= self._settings.max_model_len:
            raise RequestError(f"{len(request.prompt_ids)} tokens leave no room for a response")
        if request.fire is not None and not self._settings.hot_tokens:
            raise RequestError("this engine was built without hot tokens")
        live = self._live[request.request_id] = _LiveRequest(hot=request.fire is not None)
        ended = True
        try:
            outputs = await self._submit(request, live)
            if outputs is None:
                yield TokenDelta([], [], self.version, "aborted")
                return
            ended = False
            while not ended:
                output = outputs.get_nowait() or await outputs.get()
                ended = output.finished
                if not live.taken:
                    known = output.prompt_token_ids or ()
                    if request.media and list(known) != request.prompt_ids:
                        raise RequestError(
                            f"vLLM's image processor makes {len(known)} tokens of a prompt for "
                            f"which the coordinator's makes {len(request.prompt_ids)}: their "
                            "versions differ"
                        )
                    self.prefill_tokens += len(request.prompt_ids) - (output.num_cached_tokens or 0)
                for delta in _deltas(live, output.outputs[0]):
                    yield delta
        except VllmDeadError as error:
            ended = True
            raise EngineDeadError("the vLLM engine process died") from error
        finally:
            self._live.pop(request.request_id, None)
            if not ended and self._engine is not None:
                await self._engine.abort(request.request_id)

    async def _submit(self, request: GenerationRequest, live: _LiveRequest) -> Any:
        """Put the request into vLLM, never in the middle of a weight load.

        Return its output queue, or None when it was aborted while it waited. The prompt's salt
        keeps the prefix cache from answering with blocks of older weights, but for a later turn
        with those of its first one, and what waited in vLLM while weights came."""
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input

        if request.media:
            prompt = await asyncio.to_thread(self._prompt, request)
        else:
            prompt = tokens_input(request.prompt_ids)
        while not self._open.is_set():
            await self._open.wait()
        if live.aborted:
            return None
        live.version = self.version
        version = self.version if request.cache_version < 0 else request.cache_version
        prompt["cache_salt"] = f"v{version}"
        loaded = self._adapter.request() if self._adapter and self._last_good else None
        self._submitting += 1
        try:
            outputs = await self._engine.add_request(
                request.request_id, prompt, self.sampling_params(request), lora_request=loaded
            )
        except VLLMValidationError as error:
            raise RequestError(str(error)) from error
        finally:
            self._submitting -= 1
        # While a thread prepared its images, vLLM did not know it.
        if self._live[request.request_id].aborted:
            await self._engine.abort(request.request_id)
        return outputs

    def _prompt(self, request: GenerationRequest) -> Any:
        """Return vLLM's form of a prompt with images."""
        if self._settings.media is None:
            raise RequestError("this engine reads text alone")
        digests = [run.digest for run in request.media]
        try:
            images = [self._image(digest) for digest in digests]
        except UserError as error:
            raise RequestError(str(error)) from error
        return {
            "prompt_token_ids": collapse_placeholders(
                request.prompt_ids, request.media, self._settings.banned_ids
            ),
            "multi_modal_data": {"image": images},
            "multi_modal_uuids": {"image": digests},
        }

    async def abort(self, request_id: str) -> None:
        if (live := self._live.get(request_id)) is not None:
            live.aborted = True
            await self._engine.abort(request_id)

    async def load_weights(self, path: Path, version: int) -> LoadReport:
        async with self._loading:
            began = time.perf_counter()
            reason = await asyncio.to_thread(self._layout.mismatch, path)
            return await self._load(path, version, reason, began)

    async def receive_weights(
        self, notice: WeightNotice, name: str, curve_keys: str | None, overtaken: Overtaken
    ) -> LoadReport | None:
        """Replace the weights by the learner's broadcast; None: it offers none to this engine, or
        the version is overtaken.

        After a failure no other broadcast of that learner is tried."""
        scheme = "nccl://" if self._settings.on_gpu else "gloo://"
        source = next((text for text in notice.sources if text.startswith(scheme)), None)
        if source in (None, self._given_up):
            return None
        async with self._loading:
            began = time.perf_counter()
            joined, self._joined, self._given_up = self._joined == source, "", source
            request = BroadcastRequest(
                version=notice.version, joined=joined, workers=self._settings.tensor_parallel_size
            )
            link = Link(source.replace(scheme, "tcp://"), curve_keys=curve_keys)
            reply = await request_broadcast(
                link, name, request, silence_s=_BROADCAST_S, overtaken=overtaken
            )
            report = None
            if reply is not None:
                found = {tensor.name: tensor.shape for tensor in reply.tensors}
                reason = self._layout.difference(source, found)
                report = await self._load(reply, notice.version, reason, began)
                joined = True
            self._joined, self._given_up = source if joined else "", ""
            return report

    async def _load(
        self, source: Path | BroadcastReply, version: int, reason: str | None, began: float
    ) -> LoadReport:
        if reason is not None:
            raise WeightsRefusedError(reason)
        self._open.clear()
        try:
            gap = await self._swap(source, version)
        finally:
            self._open.set()
        return LoadReport(gap, time.perf_counter() - began)

    async def _swap(self, source: Path | BroadcastReply, version: int) -> float:
        """Pause, replace, mark the boundary, resume; return the seconds of the pause."""
        while self._submitting:
            await asyncio.sleep(0)
        self.preempted += await self._count_preempted()
        paused = time.perf_counter()
        await self._pause()
        taken = await self._replace(source)
        if taken:
            # Every live request samples from it from its present token count on.
            self.version, self._last_good = version, source if isinstance(source, Path) else None
            for state in self._engine.output_processor.request_states.values():
                if live := self._live.get(state.external_req_id):
                    live.boundaries.append((state.detokenizer.num_output_tokens(), version))
        await self._engine.resume_generation()
        gap = time.perf_counter() - paused
        if not taken:
            raise WeightsRefusedError(
                f"{source} could not be loaded; version {self.version} is back"
            )
        return gap

    async def _pause(self) -> None:
        core = self._engine.engine_core
        recompute = self.recompute_on_update
        if recompute and self._settings.media is not None:
            # The engine process forgets its images, so the renderer has to send all of them again.
            await self._engine.renderer.clear_mm_cache_async()
        if not self._broken:
            await core.pause_scheduler_async(mode="keep", clear_cache=recompute)
        while not core.outputs_queue.empty():
            await asyncio.sleep(0)
        if recompute:
            await self._count_preempted()  # All that run, in order to be computed again.

    async def _count_preempted(self) -> int:
        """Count the tokens that vLLM computes once more; return the number of their requests."""
        core = self._engine.engine_core
        requests, tokens = await core.call_utility_async("headrace_preempted")
        self.prefill_tokens += tokens
        return int(requests)

    async def _replace(self, source: Path | BroadcastReply) -> bool:
        """Load `source`; failing that, the last good file (False), or stay paused."""
        for attempt in (source, self._last_good):
            if attempt is None:
                continue
            call: tuple[Any, ...] = ("headrace_load", str(attempt))
            if isinstance(attempt, BroadcastReply):
                size = self._settings.tensor_parallel_size + 1
                tensors = msgspec.to_builtins(attempt.tensors)
                call = ("headrace_receive", attempt.rendezvous, size, tensors)
            try:
                if self._adapter is not None and isinstance(attempt, Path):
                    call = ("headrace_adapt", *self._adapter.offer(attempt))
                failures = await self._engine.collective_rpc("headrace_try", args=call)
            except Exception as error:  # any failure of the engine arrives as a bare Exception
                failures = [repr(error)]
            if failure := max(failures):
                _LOG.error("loading %s failed: %s", attempt, failure)
                if self._engine.errored:
                    raise EngineDeadError("the vLLM engine process died while loading")
                continue
            if self._settings.media is not None:
                # The worker has dropped its images' embeddings; the scheduler still counts on them.
                await self._engine.reset_encoder_cache()
            self._broken = False
            return attempt is source
        self._broken = True
        raise WeightsBrokenError(f"{source} failed while loading and there is no way back")

    async def stop(self) -> None:
        """End the engine process (a few seconds)."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            if not engine.errored:
                await engine.abort(list(self._live))
            engine.shutdown()
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.close()
        if self._adapter is not None:
            self._adapter.close()


def _deltas(live: _LiveRequest, completion: Any) -> list[TokenDelta]:
    """Cut a completion's new tokens at the version boundaries inside them."""
    token_ids = completion.token_ids
    logprobs = completion.logprobs.logprobs if token_ids else []
    reason = completion.finish_reason
    finish = _FINISH.get(reason)
    if finish is None and reason is not None:
        raise RequestError(f"vLLM ended the request: {reason}")
    hot = live.hot and live.taken == 0 and len(token_ids) > 0
    parts = []
    while live.boundaries and live.boundaries[0][0] < live.taken + len(token_ids):
        first, version = live.boundaries.popleft()
        count = first - live.taken
        if count:
            parts.append(TokenDelta(token_ids[:count], logprobs[:count], live.version))
            token_ids, logprobs = token_ids[count:], logprobs[count:]
        live.taken, live.version = first, version
    live.taken += len(token_ids)
    parts.append(TokenDelta(token_ids, logprobs, live.version, finish))
    if hot:
        parts[0] = parts[0]._replace(hot=True)
    return parts
