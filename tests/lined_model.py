"""A model of the demonstration whose tokenizer writes lines: one of its letters is a newline."""

import json
import shutil
from pathlib import Path


def lined_model(folder: Path, source: Path, letter: str) -> Path:
    """A copy of the model folder `source` in which `letter` reads as a newline, same id."""
    shutil.copytree(source, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["\n"] = vocabulary.pop(letter)
    path.write_text(json.dumps(tokenizer))
    return folder
