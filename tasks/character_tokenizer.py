"""The demo task's tokenizer: one character, one token.

In: nothing. Out: a Hugging Face fast tokenizer with 70 entries, which AutoTokenizer and vLLM load
from `tokenizer.json` like any other. Encoding adds no special token, so a prompt of n characters is
n tokens, and decoding puts the characters side by side without spaces.
"""

from __future__ import annotations

import string

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from tasks.chain_sums import LABELS

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
VOCABULARY = (PAD, BOS, EOS, UNKNOWN, *string.digits, *"+=;#", *LABELS)
MAX_LENGTH = 512


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; `save_pretrained` writes the files that vLLM reads."""
    tokenizer = Tokenizer(
        WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
