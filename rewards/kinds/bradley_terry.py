"""The kind `bradley_terry`: the score of a whole answer, by a preference model.

In: an answer as text, and its prompt, whose images a vision-language model sees. Out: sigma(score -
center), from 0 to 1, by a model that `headrace reward train` made with `kind = "bradley_terry"`;
the score itself is the part `logit`. The model reads texts, so its tokenizer need not be the
policy's. An empty answer scores 0; what cannot be read, such as a prompt without its image, is
`invalid`, never 0.
"""

import json
import math
from pathlib import Path

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import said_part, without_control_tokens
from headrace.data.media import MediaStore
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict
from rewards.kinds import model_folder
from rewards.verifier import Verifier
from tasks.rows import chat_of


class Options(StrictModel):
    """The reward model and the text that it reads."""

    model: str | None = None
    """Folder of the reward model, relative to recipe or working directory; required."""

    center: float = 0.0
    """The score that is worth a half: pairs say nothing of where a model's scores have their zero.
    Far from it rewards hardly differ."""

    thought: str | None = Field(default=None, pattern=r"^[\w-]+$")
    """Tag of the response's thought (`think`), which the model does not read."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before what the model reads. None: all that the response says."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a scoring child."""


def build(options: Options) -> Verifier:
    """The verifier, with its model loaded; UserError where that is no such reward model."""
    folder = model_folder(options.model, "bradley_terry", "reward model of whole answers")
    # Torch takes seconds to load, and most kinds do without.
    import torch

    from rewards.models.scorer import ScoreScorer

    torch.set_num_threads(options.threads)
    store = MediaStore(Path())
    scorer = ScoreScorer(folder, read_image=store.read)

    def judge(item: ScoreItem) -> Verdict:
        store.folder = Path(item.media)
        # A plain text in the policy's template is a chat, too, as it is in the pairs of a run.
        reads = item.messages.startswith("[") or scorer.card.chat_template != "never"
        prompt = chat_of(json.loads(item.messages)) if item.messages and reads else item.prompt
        text = said_part(item.text, options.thought, options.answer_marker)
        if not text.strip():
            return Verdict()  # No pair has taught the model what no answer is worth.
        try:
            # Else a response ends its turn, and writes the user's next one.
            logit = scorer.score(prompt, without_control_tokens(text), ended=item.finished)
        except UserError as error:
            raise InvalidRewardError(str(error)) from error
        share = (1.0 + math.tanh((logit - options.center) / 2)) / 2
        return Verdict(share, False, {"logit": logit})

    return Verifier(judge, graded=True)
