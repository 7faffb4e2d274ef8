"""A byte-level tokenizer for tests, trained on a few words."""

from collections.abc import Iterator

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def train_tokenizer(
    lines: Iterator[str], *, vocab_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """A byte-level BPE with exactly `vocab_size` entries; any text round-trips through it.

    A short text yields fewer merges than that: the rest are reserved entries that no text encodes
    to, so that every id a random model samples can be decoded.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<reserved_{i}>" for i in range(missing)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
