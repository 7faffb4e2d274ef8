"""Key names of other systems, and the key that means the same here.

In: the unknown parts of a key. Out: our key and whose name it was. Used in error messages and
in docs/configuration.md, so that a user of another system finds the right key in one step.
"""

from typing import NamedTuple


class PeerKey(NamedTuple):
    """A key of another system: whose it is, and what to write here."""

    peer: str
    ours: str


_CLIPS = "algorithm.policy_loss.clip_ratio_low and algorithm.policy_loss.clip_ratio_high"
_EPOCHS = "stop.updates (updates, not epochs)"
_LAMBDAS = "algorithm.advantages.gae_lambda_policy and algorithm.value.gae_lambda_value"
_RESPONSES = "schedule.batch_windows (in responses: prompts x schedule.num_generations)"
PEER_KEYS: dict[str, PeerKey] = {
    "adv_estimator": PeerKey("verl", "algorithm.advantages.kind"),
    "advantage_estimator": PeerKey("OpenRLHF", "algorithm.advantages.kind"),
    "beta": PeerKey("TRL", 'algorithm.kl.coef with algorithm.kl.where = "loss"'),
    "cliprange_value": PeerKey("verl", "algorithm.value.value_clip_low and value_clip_high"),
    "clip_ratio": PeerKey("verl", _CLIPS),
    "clip_ratio_c": PeerKey("verl", "algorithm.policy_loss.dual_clip"),
    "critic_warmup": PeerKey("verl", "algorithm.value.warmup_updates"),
    "critic_warmup_steps": PeerKey("verl", "algorithm.value.warmup_updates"),
    "custom_reward_function": PeerKey("verl", "reward.function"),
    "custom_rm_path": PeerKey("slime", "reward.function"),
    "entropy_coeff": PeerKey("verl", "algorithm.penalties.entropy_coef"),
    "eps_clip": PeerKey("OpenRLHF and slime", _CLIPS),
    "eps_clip_high": PeerKey("slime", "algorithm.policy_loss.clip_ratio_high"),
    "epsilon": PeerKey("TRL", _CLIPS),
    "epsilon_high": PeerKey("TRL", "algorithm.policy_loss.clip_ratio_high"),
    "eval_steps": PeerKey("TRL", "evaluation.every_updates"),
    "generate_max_len": PeerKey("OpenRLHF", "task.max_response_length"),
    "gradient_accumulation_steps": PeerKey(
        "TRL", "no key (micro-batches follow from learner.micro_batch_tokens)"
    ),
    "group_size": PeerKey("prime-rl", "schedule.num_generations"),
    "init_kl_coef": PeerKey("OpenRLHF", "algorithm.kl.coef (with algorithm.kl.where)"),
    "kl_coef": PeerKey("verl", 'algorithm.kl.coef with algorithm.kl.where = "reward"'),
    "kl_loss_coef": PeerKey("verl", 'algorithm.kl.coef with algorithm.kl.where = "loss"'),
    "kl_loss_type": PeerKey("verl", "algorithm.kl.estimator (kl: k1, mse: k2, low_var_kl: k3)"),
    "filter_groups": PeerKey("verl", 'algorithm.admit = "mixed_groups"'),
    "dynamic_sampling_filter_path": PeerKey("slime", 'algorithm.admit = "mixed_groups"'),
    "overlong_buffer": PeerKey("verl", "algorithm.overlong.cache and algorithm.overlong.factor"),
    "tis_imp_ratio_cap": PeerKey("verl", 'algorithm.ratio.cap with algorithm.ratio.kind = "tis"'),
    "lam": PeerKey("verl", _LAMBDAS),
    "lambd": PeerKey("OpenRLHF", _LAMBDAS),
    "learning_rate": PeerKey("TRL", "learner.policy.lr and learner.value.lr"),
    "loss_agg_mode": PeerKey("verl", "algorithm.aggregate"),
    "loss_type": PeerKey("TRL", "algorithm.aggregate"),
    "max_completion_length": PeerKey("TRL", "task.max_response_length"),
    "max_grad_norm": PeerKey("TRL", "learner.policy.grad_clip"),
    "max_head_offpolicyness": PeerKey("AReaL", "schedule.max_staleness"),
    "max_lag": PeerKey("PipelineRL", "schedule.max_staleness"),
    "max_new_tokens": PeerKey("AReaL", "task.max_response_length"),
    "max_off_policy_steps": PeerKey("prime-rl", "schedule.max_staleness"),
    "max_steps": PeerKey("TRL", "stop.updates"),
    "max_trajectory_age_steps": PeerKey("NeMo-RL", "schedule.max_staleness"),
    "micro_train_batch_size": PeerKey("OpenRLHF", "learner.micro_batch_tokens"),
    "model_name_or_path": PeerKey("TRL", "model.path"),
    "n": PeerKey("verl", "schedule.num_generations"),
    "n_samples_per_prompt": PeerKey("OpenRLHF and slime", "schedule.num_generations"),
    "norm_adv_by_std_in_grpo": PeerKey("verl", "algorithm.advantages.scale"),
    "num_iterations": PeerKey("TRL", "learner.policy.epochs"),
    "num_train_epochs": PeerKey("TRL", _EPOCHS),
    "per_device_train_batch_size": PeerKey(
        "TRL", "schedule.batch_windows (in responses of all devices, accumulated ones too)"
    ),
    "ppo_epochs": PeerKey("verl", "learner.policy.epochs"),
    "ppo_max_token_len_per_gpu": PeerKey("verl", "learner.micro_batch_tokens"),
    "ppo_micro_batch_size_per_gpu": PeerKey("verl", "learner.micro_batch_tokens"),
    "ppo_mini_batch_size": PeerKey("verl", "learner.policy.minibatches (a count, not a size)"),
    "pretrain": PeerKey("OpenRLHF", "model.path"),
    "remote_rm_url": PeerKey("OpenRLHF", "reward.function"),
    "reward_funcs": PeerKey("TRL", "reward.function or reward.functions"),
    "reward_weights": PeerKey("TRL", "reward.functions.weight"),
    "rollout_batch_size": PeerKey("OpenRLHF and slime", _RESPONSES),
    "rollout_max_response_len": PeerKey("slime", "task.max_response_length"),
    "save_freq": PeerKey("verl", "checkpoint.every_updates"),
    "save_steps": PeerKey("TRL", "checkpoint.every_updates"),
    "scale_rewards": PeerKey("TRL", "algorithm.advantages.scale"),
    "seq_len": PeerKey("prime-rl", "task.max_prompt_length and task.max_response_length"),
    "test_freq": PeerKey("verl", "evaluation.every_updates"),
    "total_epochs": PeerKey("verl", _EPOCHS),
    "total_training_steps": PeerKey("verl", "stop.updates"),
    "train_batch_size": PeerKey("verl", _RESPONSES),
    "train_files": PeerKey("verl", "task.path"),
    "val_files": PeerKey("verl", "task.eval_path"),
    "val_kwargs": PeerKey("verl", "evaluation.temperature and evaluation.top_p"),
    "weight_sync_steps": PeerKey(
        "TRL", "no key (weights go out after every update; see learner.publish_min_interval_s)"
    ),
}  # fmt: skip


def translate(key: str) -> str | None:
    """A sentence for a dotted key, or a section in it, that another system has, or None."""
    name = next((part for part in key.split(".") if part in PEER_KEYS), None)
    if name is None:
        return None
    known = PEER_KEYS[name]
    shown = "rollout.n" if name == "n" else name
    owner = known.peer.replace(" and ", "'s and ") + "'s"
    verb = "has" if known.ours.startswith("no key") else "is"
    return f"{owner} {shown} {verb} {known.ours} here"
