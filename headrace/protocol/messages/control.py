"""Every message on the wire, in the order in which a run sends them.

The coordinator has one ROUTER, every other process a DEALER. Structs are frozen and tagged; the
codec takes the numpy arrays out into raw frames of their own. Raise PROTOCOL_VERSION when a field
changes its meaning. Positions count tokens from the end of a sequence's opening: see `token_spans`.
"""

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from headrace.protocol import fields
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.messages.environments import StepAsk, StepReply
from headrace.protocol.token_spans import Float32, Int32, MediaRun, Span, Streams

PROTOCOL_VERSION = 17

Role = Literal["generator", "reward", "environment", "learner", "monitor"]
Finish = Literal["stop", "length", "window", "held", "failed"]
Purpose = Literal["train", "eval", "probe", "along"]
"""`probe`: continues a prefix of an evaluation's answer, beside ledger, accuracy and exports.
`along`: of an evaluation beside training."""
EVALUATIONS: tuple[Purpose, ...] = ("eval", "along")
"""Purposes of the answers that an evaluation counts."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""


# -- joining and staying ---------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag=True):
    """First message of a process. `name` is unique in a run (e.g. generator-0), and the identity of
    the socket begins with it. `capacity`: trajectories that a generator holds at once. A learner
    sends the update that its weights are from (0: the starting policy), the batch of that update,
    why it skipped the batch (`skipped`; None: it did not) and the checkpoint that it was restored
    from. It counts its Hellos in `greeting`, and acts only on the Welcome that answers the last."""

    role: Role
    name: fields.Name
    pid: fields.Pid
    host: fields.Host
    protocol: fields.Count = PROTOCOL_VERSION
    capacity: fields.Position = 0
    chosen: fields.Line = ""
    """Values that a generator chose for its host of keys that the recipe leaves open, and why."""
    update: fields.Count = 0
    batch_id: fields.Count | None = None
    """None: none yet."""
    skipped: fields.Prose | None = None
    resumed_from: fields.Line | None = None
    greeting: fields.Count = 0
    leases: list[fields.Count] = msgspec.field(default_factory=list)
    """Those that a generator still works on, or has chunks of that are not acknowledged."""
    leases_until: fields.LeaseBorder = -1
    """From its last `Heartbeat`: leases from there on may still be on their way to it."""


class Welcome(Message, frozen=True, kw_only=True, tag=True):
    """Answer to Hello. `config`: the resolved configuration as JSON, empty for a monitor. For a
    learner, `publish_as` is the version under which it publishes its weights at once, `lineage`
    their line of updates, and `greeting` that of the Hello."""

    run_id: str
    run_dir: str
    config: str
    publish_as: int = 0
    lineage: int = 0
    greeting: int = 0


class Restore(Message, frozen=True, kw_only=True, tag=True):
    """Answer to a learner whose weights are not on the surviving line of updates: load the newest
    checkpoint on it, and say Hello. `line`: (update, batch_id) of every place on it that can still
    be restored; (0, None) is the starting model."""

    reason: str
    line: list[tuple[int, int | None]]


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """The coordinator will not talk to this process (wrong version, name in use)."""

    reason: str


class AskHello(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to an unknown process: send Hello (again)."""


class Heartbeat(Message, frozen=True, kw_only=True, tag=True):
    """A sign of life, both ways, from a thread of its own in a process. To a generator, also: all
    its leases with ids below `leases_until` were sent before; those that have not arrived never
    will."""

    leases_until: fields.LeaseBorder = -1


class Progress(Message, frozen=True, kw_only=True, tag=True):
    """Learner or generator to coordinator, in the place of a heartbeat: the stage of its work, and
    `done` of `total` units (0: unknown). It is sent only when that has moved, so it counts for the
    stall time-out. An empty stage: nothing is under way. A learner sends it before its Hello, too,
    because it loads its models first."""

    stage: fields.Line
    done: fields.Count = 0
    total: fields.Count = 0
    unit: fields.Line = ""


class Missing(Message, frozen=True, kw_only=True, tag=True):
    """Both ways, from socket to socket: messages that you sent have not come. Send again what I
    have not had (`delivery.py`)."""


class Shutdown(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to all: finish what you hold, say Goodbye, end."""

    reason: str


class Goodbye(Message, frozen=True, kw_only=True, tag=True):
    """A process leaves in good order; `failed` gives the cause when it could not go on."""

    failed: fields.Prose | None = None


# -- generation ------------------------------------------------------------------------------------


class FireSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling of a response's hot first token: at `temperature` from the `top_k` most likely
    tokens (-1: all) and, of these, the nucleus `top_p`; `ban_eos`: end tokens are no candidates."""

    temperature: float
    top_k: int
    top_p: float = 1.0
    ban_eos: bool = True


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory to generate or to go on with. The request's prompt is prompt_ids + prefix_ids;
    the first new token has position len(prefix_ids). Generate until the end token, until
    `max_total` response tokens exist (finish `length`), or until `stop_at` response tokens exist
    (finish `window`; lockstep modes), whichever comes first. `lease_id` is new for each lease, so
    that chunks of a lease that was taken back are recognised. In streaming mode windows are cut at
    `next_border`, which inserted tokens move, and every `window` positions from there, without a
    stop. `version_at_least`: do not start before these weights are loaded. `next_chunk` is the
    index of the first chunk. `fire`: the first token is drawn hot; a lease whose prefix has
    sampled tokens comes without it. `cache_version`: where keys and values are kept over
    updates, the weights under which a prefix cache has earlier turns; -1: the newest alone.
    `media`: the images of the prompt."""

    lease_id: int
    trajectory_id: int
    purpose: Purpose
    prompt_ids: Int32
    prefix_ids: Int32
    seed: int
    max_total: int
    stop_at: int
    window: int
    next_chunk: int
    temperature: float
    top_p: float
    top_k: int = -1
    version_at_least: int = 0
    fire: FireSampling | None = None
    next_border: int = 0
    cache_version: fields.LoadedVersion = -1
    media: list[MediaRun] = []


class Leases(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to generator: start these, in this order."""

    leases: list[Lease]


class Hold(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to generator: end these leases now. Tokens beyond position `at` (a window border;
    -1: none, keep all) are thrown away, an end with them; the last chunk, sent even if empty, has
    finish `held`. It comes before the border's ChunkAck; nothing behind it is sent before that."""

    leases: list[tuple[int, int]]
    """(lease_id, at)"""


class TrajectoryChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, start + n) of one sequence, the logprobs of the distribution they were sampled
    from (0 where they were inserted) and the weights that sampled them (the spans cover exactly the
    sampled tokens). A chunk never crosses a window border. `finish` is set on the last chunk of a
    lease only: stop (end token, included), length, window, held, failed."""

    lease_id: fields.Count
    trajectory_id: fields.Count
    chunk_index: fields.Position
    start: fields.Position
    token_ids: Int32
    logprobs: Float32
    spans: list[Span]
    finish: Finish | None = None
    error: fields.Prose | None = None
    streams: Streams | None = None
    """None: the policy sampled every token, and they have no other data."""


class Chunks(Message, frozen=True, kw_only=True, tag=True):
    """Generator to coordinator: chunks gathered over a few milliseconds. Kept by the generator
    until acknowledged, and sent again in their order after each Welcome and Resend."""

    chunks: list[TrajectoryChunk]


class ChunkAck(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to generator: these are in the journal (or known duplicates)."""

    acked: list[tuple[int, int]]
    """(trajectory_id, chunk_index)"""


class Resend(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to generator: earlier chunks are missing; resend what is not acknowledged."""


class GeneratorReport(Message, frozen=True, kw_only=True, tag=True):
    """Generator to coordinator about once a second: counters since start (`discarded_tokens` were
    sampled and thrown away because a hold came), seconds since start spent with nothing to generate
    (`idle_s`), paused for weights (`pause_s`) and generating (`busy_s`), and `pending_tokens`:
    sampled, kept, and not yet in a chunk. `leases` and `leases_until` as in `Hello`."""

    live: fields.Position
    version: fields.LoadedVersion
    tokens: fields.Count
    discarded_tokens: fields.Count
    pending_tokens: fields.Count
    prefill_tokens: fields.Count
    preempted: fields.Count
    idle_s: fields.Seconds
    pause_s: fields.Seconds
    busy_s: fields.Seconds
    leases: list[fields.Count] = msgspec.field(default_factory=list)
    leases_until: fields.LeaseBorder = -1


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model that scores: a folder, and the beginning of its weights' SHA-256."""

    version: fields.Count
    path: fields.Line
    digest: fields.Digest

    @property
    def named(self) -> str:
        """Name of the version in a score's record."""
        return f"{self.version}-{self.digest}"


class WeightNotice(Message, frozen=True, kw_only=True, tag=True):
    """Weights `version` can be had: learner to coordinator to generators. `sources` are tried in
    order: `file:/path.safetensors` (same host) or `tcp://host:port` (the learner's own ROUTER). An
    engine on the same kind of device tries `nccl://host:port` or `gloo://host:port` before them
    (that ROUTER, by a BroadcastRequest)."""

    version: fields.Count
    update: fields.Count
    digest: fields.Digest
    """As `weights_digest` has it."""
    num_bytes: fields.Count
    sources: list[fields.Line]
    ranker: ModelVersion | None = None
    """The ranker that is trained along, as it is with these weights."""


def weights_digest(path: Path) -> str:
    """Return XXH3 of 128 bits in hexadecimal: it finds damage; keys settle who sends weights."""
    import xxhash

    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


class WeightsLoaded(Message, frozen=True, kw_only=True, tag=True):
    """Generator to coordinator: `version` samples from now on; how long requests stood still."""

    version: fields.Count
    gap_s: fields.Seconds
    load_s: fields.Seconds
    error: fields.Prose | None = None


class WeightRequest(Message, frozen=True, kw_only=True, tag=True):
    """Generator to the learner's weight ROUTER: send `version` from byte `offset`."""

    version: fields.Count
    offset: fields.Count


class WeightBytes(Message, frozen=True, kw_only=True, tag=True):
    """Answer: a piece of the safetensors file; an empty piece says the version is gone."""

    version: int
    offset: int
    data: bytes


class BroadcastRequest(Message, frozen=True, kw_only=True, tag=True):
    """Generator to the learner's weight ROUTER: broadcast `version` to my engine's `workers`.
    `joined`: they are in the group of an earlier broadcast."""

    version: fields.Count
    workers: fields.Position
    joined: bool


class BroadcastTensor(msgspec.Struct, frozen=True, array_like=True):
    """Name, dtype (torch's) and shape of one broadcast tensor."""

    name: fields.Line
    dtype: fields.Label
    shape: list[fields.Count]


class BroadcastReply(Message, frozen=True, kw_only=True, tag=True):
    """Answer: the tensors follow in this order; none: the version is gone. `rendezvous`: host:port
    of the group to join first; empty: that of an earlier broadcast goes on."""

    version: fields.Count
    tensors: list[BroadcastTensor]
    rendezvous: fields.Line = ""

    def __str__(self) -> str:
        return f"the broadcast of version {self.version}"


# -- rewards ---------------------------------------------------------------------------------------


class ScoreItem(msgspec.Struct, frozen=True, kw_only=True):
    """One response to score. `text` is the decoded response without silent tokens, `finished` is
    False for one cut at the length limit; `info` is a JSON object as text, `messages` the JSON of
    the row's prompt, a chat or a text in a chat template, that a function or a judge reads; images
    in it are named by their SHA-256, and are files of that name in the folder `media`. Token ids
    come only where requested; the response's are the sampled ones. `source` scores it, `unit` is
    what it scores at once.

    line: the response may go on; it is here up to the last of `line_ends`, with its token ids.
    group: `siblings` are the ended responses of a prompt, and the item's own response is empty.
    With `audit` the source scores it besides the prompt's own, and its score trains nothing.
    """

    trajectory_id: int
    prompt: str
    text: str
    answer: str
    finished: bool
    num_tokens: int
    info: str = "{}"
    messages: str = ""
    media: str = ""
    prompt_ids: Int32 | None = None
    completion_ids: Int32 | None = None
    source: str = "default"
    unit: Literal["trajectory", "group", "line"] = "trajectory"
    line_ends: list[int] = []
    """Indices in `completion_ids`, from 0, of the tokens that end the lines to score."""
    lines: list[str] = []
    """The texts of these lines."""
    siblings: list["ScoreItem"] = []
    audit: bool = False
    model: ModelVersion | None = None
    """Version that is to score, where the run trains the model that does."""


class ScoreRequest(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to reward worker."""

    items: list[ScoreItem]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one scoring by `source`; the other fields mean something only where `status`
    is ok. `correct` says whether the answer is right, whatever number the reward is."""

    trajectory_id: fields.Count
    status: Literal["ok", "timeout", "crashed", "invalid"]
    reward: float = 0.0
    correct: bool = False
    parts: dict[str, float] = {}
    seconds: fields.Seconds = 0.0
    error: fields.Prose | None = None
    source: fields.Name = "default"
    lines: list[float | None] = []
    """One score for each line that was asked for; None: it is neutral."""
    siblings: list["Score"] = []
    """One score for each sibling that was asked for."""
    audit: bool = False
    """As in its ScoreItem."""
    model: fields.Name | None = None
    """Version and digest of the model that scored, where the kind has one."""


class Scores(Message, frozen=True, kw_only=True, tag=True):
    """Reward worker to coordinator."""

    scores: list[Score]


# -- environments ----------------------------------------------------------------------------------


class StepRequest(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to environment worker. `ended`: episodes that need no environment any more."""

    asks: list[StepAsk]
    ended: list[int] = []


class StepReplies(Message, frozen=True, kw_only=True, tag=True):
    """Environment worker to coordinator."""

    replies: list[StepReply]


# -- learning --------------------------------------------------------------------------------------


class JournalEnd(msgspec.Struct, frozen=True):
    """A place in the journal: it holds `records` records, and `digest` names all of them."""

    records: fields.Count
    digest: fields.Digest


class Batch(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to learner rank 0: an update begins. Its contents follow in BatchPart messages,
    `parts[r]` of them for rank r. `batch_id` is given to no other batch of the run. `lineage` is
    the line of updates that it continues: a learner trains nothing but the next update of its own.
    `publish_as` is the version its weights will have; an empty policy half (value warm-up)
    publishes nothing. `checkpoint`: write one after this update. `journal`: what is on record of
    everything that the update rests on."""

    batch_id: int
    update: int
    lineage: int
    version: int
    publish_as: int
    parts: list[int]
    value_epochs: int
    checkpoint: bool
    journal: JournalEnd | None = None


class BatchPart(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to learner rank 0: piece `index` of what `rank` computes of a batch, cut so that
    it fits into one message. The windows of one trajectory go to one rank, in any of its parts."""

    batch_id: int
    rank: int
    index: int
    shard: Shard


class UpdateDone(Message, frozen=True, kw_only=True, tag=True):
    """Learner rank 0 to coordinator: the update is in the weights (`skipped`: what was not
    finite, so that it was broken off and its windows count as dropped `non_finite`). `follows`: the
    version that these weights have and whose WeightNotice is still to come."""

    batch_id: fields.Count
    update: fields.Count
    lineage: fields.Count
    metrics: fields.Metrics
    diagnostics: list[TokenDiagnostics]
    notice: WeightNotice | None = None
    follows: fields.Count | None = None
    checkpoint: fields.Line | None = None
    skipped: fields.Prose | None = None


class CheckpointRequest(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to learner between updates: write a checkpoint of the weights after `update` on
    `lineage` now (end of a run). `journal` as in Batch."""

    update: int
    lineage: int
    journal: JournalEnd | None = None


class CheckpointDone(Message, frozen=True, kw_only=True, tag=True):
    """Learner to coordinator: `path` is complete (its manifest is written). Answers a
    CheckpointRequest, or follows the UpdateDone of a Batch that asked for it."""

    update: fields.Count
    path: fields.Line


class Trouble(Message, frozen=True, kw_only=True, tag=True):
    """Learner to coordinator: a problem that a user should know now. `waits`: the learner waits for
    its end, and then sends an empty text."""

    kind: fields.Label
    text: fields.Prose
    waits: bool = False


class Command(Message, frozen=True, kw_only=True, tag=True):
    """Monitor to coordinator. drain, checkpoint, end; the run is then `stopped`, or
    `interrupted` when it was Ctrl-C."""

    action: Literal["stop", "interrupt"]


class StatusRequest(Message, frozen=True, kw_only=True, tag=True):
    """Monitor to coordinator."""


class Status(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to monitor: the state of the run. `update` is the last in the weights; `gauges`
    are numbers by metric name. `waits`: what the run waits for, with the seconds since that last
    moved; `stalled`: no process has made progress for too long, and the run is about to end.
    `troubles`: the last things that a user should know. `doing`: each process's progress;
    `moved_s`: seconds since any progress, waits for a disk apart; `checkpoint`: the update of the
    newest checkpoint on this line, or 0."""

    run_id: str
    phase: str
    update: int
    version: int
    gauges: dict[str, float]
    ledger: dict[str, int]
    dropped: dict[str, int]
    waits: dict[str, float]
    processes: dict[str, str]
    message: str = ""
    stalled: bool = False
    troubles: list[str] = msgspec.field(default_factory=list)
    doing: dict[str, str] = msgspec.field(default_factory=dict)
    moved_s: float = 0.0
    checkpoint: int = 0


AnyMessage = (
    Hello | Welcome | Restore | Refused | AskHello | Heartbeat | Progress | Missing | Shutdown
    | Goodbye
    | Leases | Hold | Chunks | ChunkAck | Resend | GeneratorReport
    | WeightNotice | WeightsLoaded | WeightRequest | WeightBytes | BroadcastRequest | BroadcastReply
    | ScoreRequest | Scores | StepRequest | StepReplies
    | Batch | BatchPart | UpdateDone | CheckpointRequest | CheckpointDone
    | Command | StatusRequest | Status
    | Trouble
)  # fmt: skip
