"""Make the encoder that a session ranker starts from.

Usage: `python -m tasks.make_models.session_model --out DIR`. In: a folder to write. Out: a Hugging
Face folder with a BERT of 0.25 million random weights, and a tokenizer of the words of the search
world. Same seed, same weights.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from tasks.procedural.search_world import vocabulary

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[eos]", "[term_del]", "[sent_del]", "[empty_d]")


def make(folder: Path, *, seed: int = 0) -> None:
    """Write model and tokenizer."""
    words = [*SPECIAL, *vocabulary()]
    plain = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", additional_special_tokens=list(SPECIAL[4:]),
    )  # fmt: skip
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(words), hidden_size=96, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=288, max_position_embeddings=128, num_labels=1, pad_token_id=0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.1,
    )  # fmt: skip
    BertForSequenceClassification(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="session_model", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.out, seed=options.seed)


if __name__ == "__main__":
    main()
