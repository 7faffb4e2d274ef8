"""The tokenizer of procedural tasks: one character, one token.

In: the characters. Out: a Hugging Face fast tokenizer, which AutoTokenizer and vLLM load from its
`tokenizer.json` like any other. Encoding adds no special token, so a prompt of n characters is n
tokens, and decoding puts the characters side by side without spaces.
"""

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from tasks.procedural.base import EOS

PAD, BOS, UNKNOWN = "<pad>", "<bos>", "<unk>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN)
MAX_LENGTH = 512
"""Default of the tokens that a task's prompt and answer have together."""


def vocabulary(characters: str) -> tuple[str, ...]:
    """The tokens in the order of their ids: four special ones, then the characters."""
    return (*SPECIAL, *characters)


def build_tokenizer(characters: str, max_length: int = MAX_LENGTH) -> PreTrainedTokenizerFast:
    """The tokenizer for up to `max_length` tokens; `save_pretrained` writes vLLM's files."""
    ids = {token: i for i, token in enumerate(vocabulary(characters))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
