"""Recipe of a reward model: start, objective and data."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from headrace.config.sections.base import StrictModel
from headrace.config.sections.learner import DecayRate
from headrace.config.sections.model import ModelConfig

TEMPLATE = """\
Question:
{question}

Rule: {rule}

Answer A:
{first}

Answer B:
{second}

Is answer A better than answer B? Answer yes or no.
"""
SLOTS = ("question", "rule", "first", "second")


class SftConfig(StrictModel):
    """A policy learns to write given answers (supervised fine-tuning), as a start for RL."""

    kind: Literal["sft"]
    """Cross-entropy of the answers' tokens, each alike."""


class BradleyTerryConfig(StrictModel):
    """A score of a whole answer: the better of two scores higher."""

    kind: Literal["bradley_terry"]
    """A scalar head, read at the last token; -log sigma(chosen - rejected - margin)."""


class PairwiseConfig(StrictModel):
    """A language model says yes or no to: is the first answer better (arXiv 2504.04950)."""

    kind: Literal["pairwise"]
    """Cross-entropy of the word over the vocabulary, plus the contradiction of both orders."""

    template: str = TEMPLATE
    """Text that the model reads; `{question}`, `{rule}`, `{first}` and `{second}`, each once."""

    rule: str = "the better answer is right and says how it was found"
    """The rule of examples without their own."""

    yes: str = Field(default="yes", min_length=1)
    """The word for `the first is better`: one token behind the template."""

    no: str = Field(default="no", min_length=1)
    """The word for `the second is better`: one token."""

    swap: bool = True
    """Show every pair in both orders."""

    first_share: float = Field(default=0.5, ge=0, le=1)
    """Without `swap`: share of pairs with the better answer first."""

    consistency: float = Field(default=0.1, ge=0)
    """Weight of (p(a, b) + p(b, a) - 1)^2, with `swap`."""

    @field_validator("template")
    @classmethod
    def _slots(cls, text: str) -> str:
        for slot in SLOTS:
            count = text.count(f"{{{slot}}}")
            if count > 1 or (count == 0 and slot != "rule"):
                raise ValueError(f"a text with {{{slot}}} exactly once, not {count} times")
        return text


class LinesConfig(StrictModel):
    """A score per line end: 1 while the answer can still come out right, -1 from the first fatal
    line on (arXiv 2410.17621)."""

    kind: Literal["lines"]
    """A scalar head, read at line ends; mean squared error against the labels."""

    separator: str = Field(default="\n", min_length=1)
    """End of a line; its score is read at that token."""


class ContrastiveConfig(StrictModel):
    """First stage of a ranker: which variants are of one session."""

    epochs: int = Field(default=4, ge=0)
    """Passes over the sessions; 0: no first stage."""

    batch: int = Field(default=128, ge=2)
    """Sessions per step; their variants are each other's negatives."""

    lr: float = Field(default=5e-5, gt=0)
    """Learning rate after warm-up, constant."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""

    temperature: float = Field(default=0.1, gt=0)
    """Divides cosines (tau in the paper)."""

    ratio: float = Field(default=0.5, gt=0, lt=1)
    """Share of terms masked, of queries and documents deleted."""

    one_deletes: bool = False
    """One variant is always a deletion, as in the released code; the paper draws two strategies."""


class RankerConfig(StrictModel):
    """A ranker of documents that reads a search session (COCA, arXiv 2108.10510): contrastive
    pretraining, then pointwise ranking (`[training]`)."""

    kind: Literal["ranker"]
    """A BERT with pooler and scalar head; cross-entropy per candidate. Data: `sessions` or
    `search_world`."""

    contrastive: ContrastiveConfig = ContrastiveConfig()

    reads_history: bool = True
    """Read what was asked and clicked before; false: the last query alone."""


ObjectiveConfig = Annotated[
    SftConfig | BradleyTerryConfig | PairwiseConfig | LinesConfig | RankerConfig,
    Field(discriminator="kind"),
]


class _DataConfig(StrictModel):
    """Keys of every source of examples."""

    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts held out by hash."""

    eval_limit: int = Field(default=512, ge=1)
    """Maximum number of held-out examples used."""

    max_tokens: int = Field(default=2048, ge=2)
    """Maximum example length in tokens; longer ones are left out and counted."""


class FileDataConfig(_DataConfig):
    """Examples in files."""

    kind: Literal["file"]
    """JSON lines, JSON or Parquet; columns: docs/reward-kinds.md, docs/algorithms.md (sft)."""

    path: str
    """A file or a glob."""

    eval_path: str | None = None
    """Held-out examples. None: `eval_fraction` of the prompts in `path`."""

    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows, from the first on."""


class RunDataConfig(_DataConfig):
    """Pairs of a run's own groups: right answers against wrong ones."""

    kind: Literal["run"]
    """A run of `headrace train`."""

    run: str
    """Its id, the beginning of it, `latest`, or its folder."""

    pairs_per_group: int = Field(default=4, ge=1)
    """Maximum number of pairs per group."""


class TaskDataConfig(_DataConfig):
    """Examples of a procedural task: right answers, and answers with a slip."""

    kind: Literal["task"]
    """Nothing is read."""

    task: Literal["chain_sums", "tracking", "shapes"] = "tracking"
    """The task: a slip of tracking is seen, one of chain_sums computed (many more steps), shapes
    has pairs of captions."""

    examples: int = Field(default=4000, ge=16)
    """Number of examples, held-out ones included."""

    min_terms: int = Field(default=2, ge=1)
    """Minimum number of terms."""

    max_terms: int = Field(default=4, ge=1)
    """Maximum number of terms."""


class SessionDataConfig(_DataConfig):
    """Search sessions in files."""

    kind: Literal["sessions"]
    """JSON lines, or COCA's released files; docs/reward-kinds.md."""

    path: str
    """Sessions to contrast."""

    lists: str
    """Lists of candidates to learn ranking from."""

    eval_path: str
    """Lists that are held out."""

    max_tokens: int = Field(default=128, ge=16)
    """Maximum row length in tokens; the oldest queries go first."""


class SearchWorldConfig(_DataConfig):
    """Search sessions that are made."""

    kind: Literal["search_world"]
    """Twenty topics, and queries that could mean three."""

    sessions: int = Field(default=4000, ge=1)
    """Sessions to contrast."""

    lists: int = Field(default=300, ge=1)
    """Lists of ten candidates to learn from."""

    eval_limit: int = Field(default=400, ge=1)
    """Held-out lists, the same for every seed."""

    max_tokens: int = Field(default=128, ge=16)
    """Maximum row length in tokens."""


DataConfig = Annotated[
    FileDataConfig | RunDataConfig | TaskDataConfig | SessionDataConfig | SearchWorldConfig,
    Field(discriminator="kind"),
]


class TrainingConfig(StrictModel):
    """Optimizer steps: how many, how large, how fast."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps. None: by `epochs`."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the examples, without `steps`."""

    batch: int = Field(default=32, ge=1)
    """Examples per optimizer step."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after warm-up."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """After the warm-up: constant, or down to 0 at the last step."""

    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""

    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    """AdamW's decay rates."""

    grad_clip: float = Field(default=1.0, gt=0)
    """Bound of the global gradient norm."""

    evaluate_every: int = Field(default=20, ge=1)
    """Steps between evaluations; also before and after."""

    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""

    patience: int | None = Field(default=None, ge=1)
    """End after this many evaluations without a lower held-out loss, and keep the model of the
    lowest. None: take all steps, keep the last."""

    from_scratch: bool = False
    """Begin with random weights of the model's shape."""


class EngineConfig(StrictModel):
    """Computation of the learner's engine; one process."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU when there is one."""

    precision: Literal["float32", "bf16_autocast", "bfloat16"] = "bf16_autocast"
    """As `learner.precision`."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage."""

    offload_optimizer: bool = False
    """Keep optimizer state in host memory (ZeRO 1 and up)."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""

    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Maximum number of tokens per forward pass; a longer example has its own."""

    threads: int = Field(default=1, ge=1)
    """Torch threads on a CPU."""


class RewardModelConfig(StrictModel):
    """Everything a reward model is made from; saved as `reward-model.json` in its run folder."""

    name: str = "reward-model"
    """First part of the run's id."""

    root: str = "runs"
    """Folder that holds the run folders."""

    out: str | None = None
    """Folder of the trained model. None: `model` in the run folder."""

    seed: int = Field(default=0, ge=0)
    """Seed of the order of examples and of whatever is drawn."""

    model: ModelConfig
    objective: ObjectiveConfig
    data: DataConfig
    training: TrainingConfig = TrainingConfig()
    engine: EngineConfig = EngineConfig()
