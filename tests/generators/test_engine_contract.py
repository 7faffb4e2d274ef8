"""What `generators.engine` promises, on every engine."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from generators.engine import (
    Engine,
    GenerationRequest,
    LoadReport,
    RequestError,
    TokenDelta,
    WeightsBrokenError,
)
from generators.engine import WeightsRefusedError as Refused
from generators.engines.distributions import hot_logprobs
from generators.engines.fake_engine import FakeEngine
from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.torch_engine import TorchEngine
from generators.engines.vllm_adapter import PREFIX, adapter_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from generators.engines.weights import WeightLayout
from headrace.config.sections.learner import AdapterConfig
from headrace.config.sections.process import TransportConfig
from headrace.host.weight_group import WeightGroup
from headrace.protocol.messages.control import FireSampling, WeightNotice
from learner.process.weight_publishing import WeightPublisher
from tests.generators.conftest import END_TOKEN, VOCAB_SIZE, make_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAX_MODEL_LEN, LAYER = 300, "model.layers.1.mlp.down_proj"
ADAPTER = AdapterConfig(rank=4, alpha=8, publish="adapter")
VLLM = (pytest.mark.vllm, pytest.mark.slow)
ON_GPU = (*VLLM, pytest.mark.gpu, pytest.mark.timeout(600))
KINDS = [
    "fake",
    "torch",
    pytest.param("vllm", marks=VLLM),
    pytest.param("vllm with an adapter", marks=VLLM),
    pytest.param("vllm by broadcast", marks=VLLM),
    pytest.param("vllm on a GPU", marks=ON_GPU),
    pytest.param("vllm on a GPU with fire", marks=ON_GPU),
]


def newest() -> bool:
    """No version overtakes another here."""
    return False


class Receiver(VllmEngine):
    """Gets the tensors of a good file by broadcast, from a publisher of its own."""

    def __init__(self, settings: VllmSettings, layout: WeightLayout, folder: Path) -> None:
        super().__init__(settings, layout)
        self.publisher = WeightPublisher(
            "contract", folder, TransportConfig(), num_bytes=1 << 20,
            coordinator="tcp://127.0.0.1:1", broadcasts=torch.device("cpu"),
        )  # fmt: skip

    async def publish(self, path: Path, version: int) -> WeightNotice:
        self.publisher.withdraw()
        tensors = load_file(path)
        return await asyncio.to_thread(
            self.publisher.publish, tensors, version=version, update=version
        )

    async def load_weights(self, path: Path, version: int) -> LoadReport:
        if self._layout.mismatch(path) is not None:
            return await super().load_weights(path, version)
        notice = await self.publish(path, version)
        report = await self.receive_weights(notice, "generator-0", None, newest)
        assert report is not None
        return report

    async def stop(self) -> None:
        await super().stop()
        self.publisher.__exit__()


def build(kind: str, model: Path) -> Engine:
    config = read_config(str(model))
    layout, ends = weight_layout(str(model), config), end_token_ids(str(model), config)
    if kind == "fake":
        return FakeEngine(
            vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN, max_model_len=MAX_MODEL_LEN, step_s=0.001
        )
    if kind == "torch":
        return TorchEngine(
            str(model), layout, end_token_ids=ends, max_model_len=MAX_MODEL_LEN, max_num_seqs=16
        )
    settings = VllmSettings(
        str(model), MAX_MODEL_LEN, ends, max_num_seqs=16, kv_cache_gib=0.1, hot_tokens=True
    )
    if kind == "vllm with an adapter":
        return VllmEngine(replace(settings, adapter=ADAPTER), adapter_layout(layout, ADAPTER))
    if kind == "vllm by broadcast":
        return Receiver(settings, layout, model.parent)
    if kind != "vllm":
        # Compiled, with CUDA graphs and, without hot tokens, vLLM's second model runner.
        hot = kind.endswith("fire")
        settings = replace(
            settings, on_gpu=True, gpu_memory_utilization=0.2, enforce_eager=False, hot_tokens=hot
        )
    return VllmEngine(settings, layout)


def near(kind: str) -> float:
    """Largest difference of a logprob from a plain forward's: on a GPU vLLM multiplies float32
    matrices of the attention in TF32."""
    return 2e-2 if "GPU" in kind else 1e-4


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if "GPU" in name and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return name


@pytest.fixture(scope="module")
def weight_files(kind: str, weight_files: list[Path], model_folder: Path) -> list[Path]:
    """Weights of versions 0 and 1; where adapters are published, two of the policy."""
    if "adapter" not in kind:
        return weight_files
    layout = weight_layout(str(model_folder), read_config(str(model_folder)))
    shapes, draw = adapter_layout(layout, ADAPTER).shapes, torch.Generator().manual_seed(0)
    files = [path.with_stem(f"adapter-{path.stem}") for path in weight_files]
    for file in files:
        save_file({n: 0.2 * torch.randn(s, generator=draw) for n, s in shapes.items()}, file)
    return files


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(kind: str, model_folder: Path) -> AsyncIterator[Engine]:
    engine = build(kind, model_folder)
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(started: Engine, weight_files: list[Path]) -> Engine:
    """The engine on the policy's own weights, under a version nobody had before."""
    await started.load_weights(weight_files[0], started.version + 1)
    return started


_names = iter(range(10**9))


def ask(seed: int = 0, length: int = 40, prompt: int = 5, **changes: object) -> GenerationRequest:
    ids = [3 + (seed + i) % 50 for i in range(prompt)]
    fields = {"prompt_ids": ids, "max_tokens": length, "seed": seed}
    return GenerationRequest(request_id=str(next(_names)), **(fields | changes))  # type: ignore[arg-type]


def num_live(engine: Engine) -> int:
    """Requests of an engine that have not ended."""
    return len(vars(engine)["_rows" if isinstance(engine, TorchEngine) else "_live"])


async def collect(engine: Engine, request: GenerationRequest) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(request)]


def flat(deltas: list[TokenDelta]) -> tuple[list[int], list[float], list[int]]:
    """Token ids, logprobs, versions."""
    return (
        [token for delta in deltas for token in delta.token_ids],
        [logprob for delta in deltas for logprob in delta.logprobs],
        [delta.version for delta in deltas for _ in delta.token_ids],
    )


def reference(path: Path, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """log softmax of the next token after each position, [tokens, vocabulary]."""
    model = make_model(0)
    found, own = load_file(str(path)), model.state_dict()
    for name in [name for name in found if ".lora_A." in name]:
        change = found.pop(name.replace("lora_A", "lora_B")) @ found.pop(name)
        layer = name.removeprefix(PREFIX).replace("lora_A.", "")
        found[layer] = own[layer] + ADAPTER.alpha / ADAPTER.rank * change
    model.load_state_dict(found, strict=False)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0] / temperature, dim=-1)


async def test_streams_end_once_with_stop_or_length(engine: Engine) -> None:
    requests = [ask(seed=i, length=60) for i in range(24)]
    streams = await asyncio.gather(*[collect(engine, request) for request in requests])
    for deltas in streams:
        tokens, logprobs, versions = flat(deltas)
        assert [d.finish for d in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish == ("stop" if tokens[-1] == END_TOKEN else "length")
        assert END_TOKEN not in tokens[:-1]
        assert len(tokens) <= 60
        assert deltas[-1].finish == "stop" or len(tokens) == 60
        assert len(logprobs) == len(tokens)
        assert all(logprob <= 0 for logprob in logprobs)
        assert set(versions) == {engine.version}
    assert {deltas[-1].finish for deltas in streams} == {"stop", "length"}
    assert num_live(engine) == 0


async def test_same_request_same_tokens_other_seed_or_position_others(engine: Engine) -> None:
    requests = [ask(seed=3), ask(seed=3), ask(seed=4, prompt_ids=ask(seed=3).prompt_ids)]
    first, again, other = [flat(await collect(engine, request))[0] for request in requests]
    assert first == again
    assert first != other
    moved = flat(await collect(engine, ask(seed=3, position=2)))[0]
    assert first != moved


async def test_by_position_draws_do_not_depend_on_how_a_response_was_cut(
    engine: Engine, kind: str
) -> None:
    if kind.startswith("vllm"):
        return
    whole = ask(seed=6, length=40)
    tokens, _, _ = flat(await collect(engine, whole))
    half = len(tokens) // 2
    rest = ask(seed=6, length=40 - half, prompt_ids=whole.prompt_ids + tokens[:half], position=half)
    assert flat(await collect(engine, rest))[0] == tokens[half:]


async def test_logprobs_are_those_of_a_plain_forward(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    if kind == "fake":
        _, logprobs, _ = flat(await collect(engine, ask(seed=5)))
        assert all(math.isfinite(logprob) for logprob in logprobs)
        return
    requests = [ask(seed=i, prompt=2 + 3 * i) for i in range(6)]
    streams = await asyncio.gather(*[collect(engine, request) for request in requests])
    check_logprobs(requests, streams, weight_files[0], near(kind))


async def test_after_a_load_logprobs_are_those_of_the_new_weights(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    await engine.load_weights(weight_files[1], engine.version + 1)
    if kind == "fake":
        return
    requests = [ask(seed=i, prompt=2 + 3 * i) for i in range(6)]
    streams = await asyncio.gather(*[collect(engine, request) for request in requests])
    check_logprobs(requests, streams, weight_files[1], near(kind))


def check_logprobs(
    requests: list[GenerationRequest],
    streams: list[list[TokenDelta]],
    weights: Path,
    within: float,
) -> None:
    """Every token's logprob is that of a plain forward pass under these weights."""
    for request, deltas in zip(requests, streams, strict=True):
        tokens, logprobs, _ = flat(deltas)
        wanted = reference(weights, request.prompt_ids + tokens)
        begin = len(request.prompt_ids) - 1
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            assert abs(float(wanted[begin + i, token]) - logprob) < within


async def test_logprobs_are_of_the_distribution_sampled_from(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    if kind == "fake":
        return
    request = ask(seed=1, temperature=0.7, top_k=5)
    tokens, logprobs, _ = flat(await collect(engine, request))
    wanted = reference(weight_files[0], request.prompt_ids + tokens, temperature=0.7)
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        top, order = wanted[len(request.prompt_ids) - 1 + i].topk(5)
        among = torch.log_softmax(top, dim=-1)
        assert token in order.tolist()
        assert abs(float(among[order.tolist().index(token)]) - logprob) < near(kind)


async def test_the_first_token_of_a_request_with_fire_is_hot_and_no_other(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    """Its logprob is of the hot distribution, whatever the other sampling settings are, and
    wherever in the response it stands."""
    if kind == "vllm on a GPU":
        return
    fire = FireSampling(temperature=30.0, top_k=6)
    begun = [ask(seed=i, temperature=0.7, fire=fire, position=2 * (i > 5)) for i in range(8)]
    resumed = [ask(seed=i, temperature=0.7, position=2) for i in range(4)]
    streams = await asyncio.gather(*[collect(engine, request) for request in begun + resumed])
    for i, deltas in enumerate(streams):
        assert [delta.hot for delta in deltas] == [i < len(begun)] + [False] * (len(deltas) - 1)
    if kind == "fake":
        return
    for request, deltas in zip(begun + resumed, streams, strict=True):
        tokens, logprobs, _ = flat(deltas)
        wanted = reference(weight_files[0], request.prompt_ids + tokens, temperature=0.7)
        wanted = wanted[len(request.prompt_ids) - 1 :]
        if request.fire is not None:
            # A log softmax is as good as logits: they differ by a constant.
            wanted[0] = hot_logprobs(0.7 * wanted[0], fire, {END_TOKEN})
        for row, token, logprob in zip(wanted, tokens, logprobs, strict=False):
            assert abs(float(row[token]) - logprob) < near(kind)


async def test_greedy_takes_the_likeliest_token(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    if kind == "fake":
        return
    request = ask(seed=1, temperature=0.0, length=12)
    tokens, _, _ = flat(await collect(engine, request))
    wanted = reference(weight_files[0], request.prompt_ids + tokens)
    begin = len(request.prompt_ids) - 1
    assert tokens == wanted[begin : begin + len(tokens)].argmax(dim=-1).tolist()


async def test_abort_ends_the_stream(engine: Engine) -> None:
    request = ask(seed=9, length=200)
    deltas: list[TokenDelta] = []
    async for delta in engine.generate(request):
        if not deltas:
            await engine.abort(request.request_id)
        deltas.append(delta)
    assert deltas[-1].finish == "aborted"
    await engine.abort(request.request_id)
    await engine.abort("never heard of")
    assert num_live(engine) == 0


async def test_abort_reaches_a_request_that_waits_for_a_weight_load(
    engine: Engine, weight_files: list[Path]
) -> None:
    request = ask(seed=9, length=200)
    load = asyncio.create_task(engine.load_weights(weight_files[1], engine.version + 1))
    await asyncio.sleep(0)
    stream = asyncio.create_task(collect(engine, request))
    await asyncio.sleep(0)
    await engine.abort(request.request_id)
    assert (await stream)[-1].finish == "aborted"
    await load


async def test_a_cancelled_consumer_aborts_its_request(engine: Engine) -> None:
    task = asyncio.create_task(collect(engine, ask(seed=9, length=200)))
    while num_live(engine) == 0:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_live(engine) == 0


async def test_what_does_not_fit_fails_alone(engine: Engine) -> None:
    with pytest.raises(RequestError):
        await collect(engine, ask(prompt=MAX_MODEL_LEN))
    assert flat(await collect(engine, ask(length=3)))[0]


async def test_weights_change_in_flight_and_requests_go_on(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    old = engine.version
    requests = [ask(seed=100 + i, length=250) for i in range(8)]
    tasks = [asyncio.create_task(collect(engine, request)) for request in requests]
    slow = engine.generate(ask(seed=200, length=250))
    slow_deltas = [await anext(slow)]
    await asyncio.sleep(0.03)
    report = await engine.load_weights(weight_files[1], old + 1)
    assert 0 <= report.gap_s <= report.load_s
    streams = await asyncio.gather(*tasks)
    slow_deltas += [delta async for delta in slow]
    mixed = 0
    for request, deltas in zip(requests, streams, strict=True):
        tokens, logprobs, versions = flat(deltas)
        assert deltas[-1].finish in ("stop", "length")
        assert versions == sorted(versions)
        assert set(versions) <= {old, old + 1}
        mixed += len(set(versions)) == 2
        if kind == "fake":
            continue
        check_versions(request, tokens, logprobs, versions, weight_files, old, near(kind))
    assert mixed > 0
    assert flat(slow_deltas)[2] == sorted(flat(slow_deltas)[2])
    if slow_deltas[-1].finish == "length":
        assert set(flat(slow_deltas)[2]) == {old, old + 1}


def check_versions(
    request: GenerationRequest,
    tokens: list[int],
    logprobs: list[float],
    versions: list[int],
    weight_files: list[Path],
    old: int,
    within: float,
) -> None:
    """The border is exact: every old token has the old weights' logprob, the first new one (whose
    own keys and values and last layer are of the new weights) has not."""
    begin = len(request.prompt_ids) - 1
    wanted = reference(weight_files[0], request.prompt_ids + tokens)
    differences = [
        abs(float(wanted[begin + i, token]) - logprob)
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True))
    ]
    border = versions.count(old)
    assert all(difference < within for difference in differences[:border])
    if border < len(tokens):
        assert differences[border] > max(1e-3, within)


async def test_a_new_request_never_sees_keys_of_older_weights(
    engine: Engine, kind: str, weight_files: list[Path]
) -> None:
    if kind == "fake":
        return
    prompt = [3 + i % 50 for i in range(280)]
    await collect(engine, ask(prompt_ids=prompt, length=4))
    await engine.load_weights(weight_files[1], engine.version + 1)
    request = ask(prompt_ids=prompt, length=4)
    tokens, logprobs, _ = flat(await collect(engine, request))
    wanted = reference(weight_files[1], prompt + tokens)
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        assert abs(float(wanted[len(prompt) - 1 + i, token]) - logprob) < near(kind)


async def test_recompute_gives_live_requests_the_new_weights_alone(
    engine: Engine, kind: str, weight_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "fake":
        return
    monkeypatch.setattr(engine, "recompute_on_update", True)
    old, prefilled = engine.version, engine.prefill_tokens
    requests = [ask(seed=70 + i, length=200, prompt=20) for i in range(8)]
    tasks = [asyncio.create_task(collect(engine, request)) for request in requests]
    await asyncio.sleep(0.05)
    await engine.load_weights(weight_files[1], old + 1)
    computed = 0
    for request, deltas in zip(requests, await asyncio.gather(*tasks), strict=True):
        tokens, logprobs, versions = flat(deltas)
        begin, border = len(request.prompt_ids) - 1, versions.count(old)
        if old + 1 not in versions:
            continue
        computed += 20 + border - 1
        wanted = reference(weight_files[1], request.prompt_ids + tokens)
        for i in range(border, len(tokens)):
            assert abs(float(wanted[begin + i, tokens[i]]) - logprobs[i]) < near(kind)
    assert computed
    assert engine.prefill_tokens >= prefilled + computed


async def test_a_failure_while_loading_goes_back_to_the_last_good_weights(
    engine: Engine,
    kind: str,
    tmp_path: Path,
    weight_files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kind.startswith("vllm") or kind == "vllm by broadcast":
        return
    before = flat(await collect(engine, ask(seed=3)))
    bad = tmp_path / "bad.safetensors"
    tensors = load_file(str(weight_files[1]))
    layer = f"{PREFIX}model.layers.1.mlp.none.lora_A" if "adapter" in kind else LAYER
    tensors[f"{layer}.weight"] = torch.zeros(3, 3)
    save_file(tensors, str(bad))
    with monkeypatch.context() as patch:
        patch.setattr(WeightLayout, "mismatch", lambda self, path: None)
        with pytest.raises(Refused, match="is back"):
            await engine.load_weights(bad, engine.version + 1)
        assert flat(await collect(engine, ask(seed=3))) == before
        patch.setattr(engine, "_last_good", None)
        with pytest.raises(WeightsBrokenError):
            await engine.load_weights(bad, engine.version + 1)
    waiting = asyncio.create_task(collect(engine, ask(seed=3)))
    await engine.load_weights(weight_files[0], engine.version + 1)
    assert flat(await waiting)[:2] == before[:2]


async def test_a_broadcast_that_breaks_off_is_followed_by_files(
    engine: Engine, weight_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine waits for a good load: no file of its last version is there to go back to."""
    if not isinstance(engine, Receiver):
        return
    before = flat(await collect(engine, ask(seed=3)))
    send, sent = WeightGroup.send, 0

    def send_some(group: WeightGroup, tensor: torch.Tensor) -> None:
        nonlocal sent
        sent += 1
        if sent > 5:
            raise RuntimeError("the learner is gone")
        send(group, tensor)

    notice = await engine.publish(weight_files[1], engine.version + 1)
    with monkeypatch.context() as patch:
        patch.setattr(WeightGroup, "send", send_some)
        with pytest.raises(WeightsBrokenError, match="broadcast"):
            await engine.receive_weights(notice, "generator-0", None, newest)
    assert sent > 5
    waiting = asyncio.create_task(collect(engine, ask(seed=3)))
    assert await engine.receive_weights(notice, "generator-0", None, newest) is None
    await VllmEngine.load_weights(engine, weight_files[0], notice.version)
    assert flat(await waiting)[:2] == before[:2]
    engine._given_up = ""


async def test_a_bad_file_is_refused_and_changes_nothing(
    engine: Engine, kind: str, tmp_path: Path, weight_files: list[Path]
) -> None:
    version = engine.version
    before = flat(await collect(engine, ask(seed=3)))
    with pytest.raises(Refused):
        await engine.load_weights(tmp_path / "missing.safetensors", version + 1)
    if kind != "fake":
        torn = tmp_path / "torn.safetensors"
        torn.write_bytes(weight_files[1].read_bytes()[:-10])
        with pytest.raises(Refused):
            await engine.load_weights(torn, version + 1)
    assert engine.version == version
    assert flat(await collect(engine, ask(seed=3))) == before
