"""A look at the tokenizer of a judge of the run, which does not serve yet.

In: a source's options and the judge that they name. Out: nothing, or a UserError of one line where
its words for yes and no are several tokens, or it cannot be asked by chat.
"""

from headrace.config.judge import JudgeConfig
from headrace.errors import UserError
from headrace.tokenizer import load_tokenizer
from rewards.judging.options import Options
from rewards.judging.selftest import refuse_long


def check_tokenizer(options: Options, judge: JudgeConfig) -> None:
    """UserError where the judge cannot do what the options ask of it."""
    name = str(options.judge)
    try:
        tokenizer = load_tokenizer(judge.path, trust_remote_code=judge.trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"reward.judges.{name}.path: no tokenizer: {reason}") from error
    if options.api == "chat" and not (tokenizer.chat_template or judge.chat_template):
        raise UserError(
            f"the judge {name!r} has no chat template: ask it with the option "
            f'api = "completions", or name a file in reward.judges.{name}.chat_template'
        )
    if options.reads_words and options.logprobs:
        for word in (options.yes, options.no):
            spellings = dict.fromkeys((word, f" {word.strip()}"))
            lengths = [len(tokenizer.encode(s, add_special_tokens=False)) for s in spellings]
            refuse_long(word, lengths, name)
