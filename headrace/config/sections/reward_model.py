"""The recipe of a reward model: what it starts from, what it learns by, from which data."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from headrace.config.sections.base import StrictModel
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


class BradleyTerryConfig(StrictModel):
    """A score of a whole answer: of two answers to one prompt the better one scores higher."""

    kind: Literal["bradley_terry"]
    """A scalar head, read at the last token; -log sigma(chosen - rejected - margin)."""


class PairwiseConfig(StrictModel):
    """A language model that is asked whether the first of two answers is better, and says yes or
    no (Pairwise-RL, arXiv 2504.04950)."""

    kind: Literal["pairwise"]
    """Cross-entropy of the word over the whole vocabulary, and how far two orders contradict each
    other."""

    template: str = TEMPLATE
    """What the model reads before it answers; `{question}`, `{rule}`, `{first}` and `{second}` are
    filled in, each once."""

    rule: str = "the better answer is right and says how it was found"
    """The rule of examples that have none of their own."""

    yes: str = Field(default="yes", min_length=1)
    """The word for `the first is better`: one token behind the template."""

    no: str = Field(default="no", min_length=1)
    """The word for `the second is better`: one token behind the template."""

    swap: bool = True
    """Every pair is shown in both orders. False: the better answer stands first in as many pairs as
    `first_share` says, and there is nothing to compare for `consistency`."""

    first_share: float = Field(default=0.5, ge=0, le=1)
    """Without `swap`: share of the pairs in which the better answer stands first."""

    consistency: float = Field(default=0.1, ge=0)
    """Weight of (p(a, b) + p(b, a) - 1)^2, zeta in the paper; with `swap` alone."""

    @field_validator("template")
    @classmethod
    def _slots(cls, text: str) -> str:
        for slot in SLOTS:
            count = text.count(f"{{{slot}}}")
            if count > 1 or (count == 0 and slot != "rule"):
                raise ValueError(f"a text with {{{slot}}} exactly once, not {count} times")
        return text


class LinesConfig(StrictModel):
    """A score at the end of each line: 1 as long as the answer can still come out right, -1 from
    the first fatal line on (arXiv 2410.17621)."""

    kind: Literal["lines"]
    """A scalar head, read at line ends; mean squared error against the labels."""

    separator: str = Field(default="\n", min_length=1)
    """What a line ends with. A line's score is read at the token that holds its end."""


class ContrastiveConfig(StrictModel):
    """The first stage of a ranker: which of many variants is of the same session."""

    epochs: int = Field(default=4, ge=0)
    """Passes over the sessions; 0: no such stage."""

    batch: int = Field(default=128, ge=2)
    """Sessions of one step, whose variants are each other's negatives."""

    lr: float = Field(default=5e-5, gt=0)
    """Learning rate after warm-up; it stays."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""

    temperature: float = Field(default=0.1, gt=0)
    """Divides cosines (tau in the paper)."""

    ratio: float = Field(default=0.5, gt=0, lt=1)
    """Share of terms that are masked, and of queries and documents that are deleted."""

    one_deletes: bool = False
    """Couple strategies as the released code does: one of the two variants is always made by
    deletion. The paper draws two different ones."""


class RankerConfig(StrictModel):
    """A ranker of documents that reads a search session (COCA, arXiv 2108.10510): contrastive
    pretraining on sessions, then pointwise ranking; `[training]` is the second stage."""

    kind: Literal["ranker"]
    """A bidirectional encoder with a pooler (BERT) and a scalar head; cross-entropy of each
    candidate. Its data are `kind = "sessions"` or `"search_world"`."""

    contrastive: ContrastiveConfig = ContrastiveConfig()

    reads_history: bool = True
    """The ranker sees what was asked and clicked before. false: the last query alone."""


ObjectiveConfig = Annotated[
    BradleyTerryConfig | PairwiseConfig | LinesConfig | RankerConfig, Field(discriminator="kind")
]


class _DataConfig(StrictModel):
    """What every source of examples has."""

    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts that is held out, by a hash of the prompt's text."""

    eval_limit: int = Field(default=512, ge=1)
    """Most held-out examples that are looked at."""

    max_tokens: int = Field(default=2048, ge=2)
    """Longest example in tokens, prompt included; longer ones are left out and counted."""


class FileDataConfig(_DataConfig):
    """Examples in files."""

    kind: Literal["file"]
    """JSON lines, JSON or Parquet; docs/reward-kinds.md has the columns."""

    path: str
    """A file (relative to the recipe or the working directory) or a glob."""

    eval_path: str | None = None
    """Held-out examples. None: `eval_fraction` of the prompts in `path`."""

    limit: int | None = Field(default=None, ge=1)
    """Take the first so many rows. None: all."""


class RunDataConfig(_DataConfig):
    """Pairs made of a run's own groups: right answers against wrong ones of one prompt."""

    kind: Literal["run"]
    """What `headrace train` left."""

    run: str
    """Its id, the beginning of it, `latest`, or its folder."""

    pairs_per_group: int = Field(default=4, ge=1)
    """Most pairs of one group."""


class TaskDataConfig(_DataConfig):
    """Examples that a procedural task makes: right answers, and answers with a slip."""

    kind: Literal["task"]
    """Nothing is read."""

    task: Literal["chain_sums", "tracking", "shapes"] = "tracking"
    """The task. tracking: a slip is mostly seen by looking. chain_sums: it has to be computed,
    which takes a tiny model many more steps. shapes: pairs of captions of an image."""

    examples: int = Field(default=4000, ge=16)
    """How many, those held out included."""

    min_terms: int = Field(default=2, ge=1)
    """Fewest terms of a prompt."""

    max_terms: int = Field(default=4, ge=1)
    """Most terms of a prompt."""


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
    """Longest row in tokens; the oldest queries of a session go first."""


class SearchWorldConfig(_DataConfig):
    """Search sessions that are made, not read."""

    kind: Literal["search_world"]
    """Twenty topics, and queries that could mean three of them."""

    sessions: int = Field(default=4000, ge=1)
    """Sessions to contrast."""

    lists: int = Field(default=300, ge=1)
    """Lists of ten candidates to learn ranking from."""

    eval_limit: int = Field(default=400, ge=1)
    """Lists that are held out; the same ones for every seed."""

    max_tokens: int = Field(default=128, ge=16)
    """Longest row in tokens."""


DataConfig = Annotated[
    FileDataConfig | RunDataConfig | TaskDataConfig | SessionDataConfig | SearchWorldConfig,
    Field(discriminator="kind"),
]


class TrainingConfig(StrictModel):
    """Optimizer steps: how many, how large, how fast."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps. None: as many as `epochs` has."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the training examples, where `steps` does not say it."""

    batch: int = Field(default=32, ge=1)
    """Examples of one optimizer step: pairs, or answers with labelled lines."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after warm-up."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """What follows the warm-up: the same rate, or down to 0 at the last step."""

    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""

    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""

    grad_clip: float = Field(default=1.0, gt=0)
    """Bound of the global gradient norm."""

    evaluate_every: int = Field(default=20, ge=1)
    """Steps between two looks at the held-out examples; there is one before and one after, too."""

    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between two checkpoints to resume from."""


class EngineConfig(StrictModel):
    """How the learner's engine computes; one process."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU when there is one."""

    precision: Literal["float32", "bf16_autocast", "bfloat16"] = "bf16_autocast"
    """float32; float32 weights with bfloat16 matrix products (float32 ones on a CPU without
    instructions for them); or DeepSpeed's bfloat16 mode."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage."""

    offload_optimizer: bool = False
    """Keep optimizer state in host memory (ZeRO 1 and up)."""

    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass."""

    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Most tokens of one forward pass. A longer example has one to itself."""

    threads: int = Field(default=1, ge=1)
    """Torch threads on a CPU."""


class RewardModelConfig(StrictModel):
    """Everything a reward model is made from; saved as `reward-model.json` in its run folder."""

    name: str = "reward-model"
    """First part of the run's id."""

    root: str = "runs"
    """Folder that holds the run folders."""

    out: str | None = None
    """Where the trained model goes. None: `model` in the run folder."""

    seed: int = 0
    """Seed of the order of examples and of whatever is drawn."""

    model: ModelConfig
    objective: ObjectiveConfig
    data: DataConfig
    training: TrainingConfig = TrainingConfig()
    engine: EngineConfig = EngineConfig()
