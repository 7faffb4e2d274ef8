"""A value model that scores every token low: what VC-PPO's failure starts from, made on purpose.

In: a policy's folder and a score. Out: a folder that `model.critic_path` takes: the policy's
backbone with a head whose weights are 0 and whose bias is the score. In the paper the critic begins
as a reward model that was trained on the last token only and says too little before it.
"""

from pathlib import Path

import torch
from transformers import AutoTokenizer

from headrace.config.model import ModelConfig
from learner.models import load_critic


def write_low_critic(policy: Path, folder: Path, score: float) -> None:
    """Make the folder, unless it is there."""
    if (folder / "config.json").exists():
        return
    model = ModelConfig(path=str(policy))
    critic = load_critic(model, dtype=torch.float32, device=torch.device("cpu"))
    torch.nn.init.constant_(critic.score.bias, score)
    critic.save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
