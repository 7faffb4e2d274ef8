"""The keys of a recipe are frozen on purpose: adding one is a deliberate, reviewed act."""

from pathlib import Path

from headrace.config.loading.key_reference import page
from headrace.config.loading.keys import key_names, keys
from headrace.config.sections.run import RunConfig
from headrace.config.validation.foreign_keys import PEER_KEYS, translate
from tasks.datasets.dataset_files import ANSWER_KEYS, PROMPT_KEYS

GOLDEN = Path(__file__).parent / "keys.txt"
ROOT = Path(__file__).resolve().parents[4]


def test_dotted_keys_are_those_of_the_snapshot() -> None:
    """After a change on purpose: python -m tests.headrace.config.loading.test_keys"""
    assert key_names(RunConfig) == GOLDEN.read_text().split()


def test_every_key_says_what_it_means() -> None:
    silent = [key.name for key in keys(RunConfig) if not key.meaning and key.name[-5:] != ".kind"]
    assert silent == []


def test_the_page_is_what_the_models_say() -> None:
    """After a change: python scripts/docs.py --write"""
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert text == page(PROMPT_KEYS, ANSWER_KEYS)
    for name in key_names(RunConfig):
        # What a mixture is made of stands once, as the tasks that they are.
        assert f"`{name.replace('task.datasets.NAME.', 'task.')}`" in text
    for name in PEER_KEYS:
        assert name in text


def test_translations_lead_to_keys_that_exist() -> None:
    known = {name.rsplit(".", 1)[-1] for name in key_names(RunConfig)}
    for name, peer in PEER_KEYS.items():
        assert name not in known, f"{name} is a key of ours"
        if not peer.ours.startswith("no key"):
            first = peer.ours.split()[0]
            assert first in key_names(RunConfig), first
    assert translate("eval_steps") == "TRL's eval_steps is evaluation.every_updates here"
    assert "updates, not epochs" in str(translate("total_epochs"))
    assert "clip_ratio_high" in str(translate("epsilon")), "TRL's bounds both sides"
    assert translate("not_a_key_of_anybody") is None


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(key_names(RunConfig)) + "\n")
