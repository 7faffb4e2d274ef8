"""Families of models in vLLM and in the learner: the same logprobs of what vLLM sampled.

One family in the suite; `HEADRACE_FAMILIES=all` (or names, with commas) tries them all in about ten
minutes, each in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.learner.models.families import FAMILIES, save_family
from tests.learner.models.test_families import REFUSED

ASKED = os.environ.get("HEADRACE_FAMILIES", "gemma2")
OTHERWISE = {"apertus", "cohere2"}
"""vLLM computes another function, and `config check` refuses them (`check_sampler`)."""
CHOSEN = sorted(FAMILIES.keys() - REFUSED - OTHERWISE) if ASKED == "all" else ASKED.split(",")
PROMPTS = [[5, 9, 13, 40, 22], [7, 60, 33]]
pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def sample(name: str, folder: Path, out: Path) -> None:
    """Sample with vLLM, score with the learner; the largest difference, or why there is none."""
    import torch
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from headrace.config.sections.model import ModelConfig
    from learner.models.family_check import _scores
    from learner.models.forward import PolicyNetwork
    from learner.models.loading import load_policy

    save_family(name, folder)
    try:
        engine = LLM(
            str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
            kv_cache_memory_bytes=64 << 20, max_model_len=128, max_num_seqs=4,
            enable_prefix_caching=False,
        )  # fmt: skip
    except Exception as error:  # what this build of vLLM has no code for
        out.write_text(json.dumps(str(error).strip().splitlines()[-1][:200]))
        return
    settings = SamplingParams(
        max_tokens=40, logprobs=0, seed=1, ignore_eos=True, temperature=1.0, detokenize=False
    )
    asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS]
    found = engine.generate(asked, settings, use_tqdm=False)
    policy = load_policy(
        ModelConfig(path=str(folder)), dtype=torch.float32, device=torch.device("cpu")
    )
    worst = 0.0
    for prompt, answer in zip(PROMPTS, found, strict=True):
        ids = list(answer.outputs[0].token_ids)
        said = answer.outputs[0].logprobs
        assert said is not None
        sampled = torch.tensor([one[i].logprob for one, i in zip(said, ids, strict=True)])
        with torch.no_grad():
            scores = _scores(PolicyNetwork(policy), [torch.tensor(prompt + ids)])
        worst = max(worst, float((scores[len(prompt) - 1 :] - sampled).abs().max()))
    out.write_text(json.dumps(worst))


@pytest.mark.parametrize("name", CHOSEN)
def test_vllm_and_the_learner_agree_on_a_family(name: str, tmp_path: Path) -> None:
    """Within 1e-3 in float32, where vLLM's CPU build can load the family."""
    environment = {
        **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    folder, out = tmp_path / "model", tmp_path / "found.json"
    command = [sys.executable, "-m", __name__, name, str(folder), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    if isinstance(found, str):
        pytest.skip(f"vLLM does not load it: {found}")
    print(f"{name}: {found:.1e}")
    assert found < 1e-3


if __name__ == "__main__":
    sample(sys.argv[1], *map(Path, sys.argv[2:]))
