"""Every metric by name: its unit, meaning and healthy range; the only description.

A new metric is added here; storage copies the table into SQL, docs and dashboard read it. Names
follow verl's prefixes (actor/ critic/ response_length/ timing_s/ perf/) where it has them. Units:
"" is a plain number, "share" is between 0 and 1. An array has a name for each of its numbers.
Entries are sorted by name.
"""

from typing import NamedTuple


class MetricInfo(NamedTuple):
    """Description of a metric. `healthy` is a range or a tendency in words, or empty."""

    name: str
    unit: str
    meaning: str
    healthy: str = ""
    bins: tuple[str, ...] = ()
    """Meaning of each number of an array, in order; empty for a metric that is one number."""


TENTHS = tuple(f"{10 * tenth} to {10 * tenth + 10} %" for tenth in range(10))
LENGTH_BINS = (64, 256, 1024, 4096, 16384)
"""Upper ends of the response lengths by which lambda is reported; the last bin is open."""
LENGTHS = (*(f"up to {end}" for end in LENGTH_BINS), f"over {LENGTH_BINS[-1]}")


# One line each: a table is read by its columns.
# ruff: noqa: E501
# fmt: off
_ALL = (
    MetricInfo("actor/advantage_mean", "", "mean advantage of trained tokens in the loss", "-0.5 to 0.5"),
    MetricInfo("actor/advantage_std", "", "their standard deviation; 0: nothing to learn", "above 0.01; near 1 when whitened"),
    MetricInfo("actor/entropy", "nats", "mean entropy over trained tokens", "falls slowly, not to 0"),
    MetricInfo("actor/grad_norm", "", "mean gradient norm of the steps, before clipping", "no spikes of ten times the usual"),
    MetricInfo("actor/lr", "", "learning rate of the policy"),
    MetricInfo("actor/pg_clipfrac", "share", "trained tokens whose ratio was clipped", "0.01 to 0.2"),
    MetricInfo("actor/pg_clipfrac_dual", "share", "trained tokens held by the dual clip", "near 0"),
    MetricInfo("actor/pg_clipfrac_lower", "share", "trained tokens clipped at the lower bound", "below 0.1"),
    MetricInfo("actor/pg_clipfrac_upper", "share", "trained tokens clipped at the upper bound", "below 0.1"),
    MetricInfo("actor/pg_clipped_probability", "", "mean probability of the tokens clipped at the upper bound", "rises with the bound"),
    MetricInfo("actor/pg_loss", "", "policy loss, with all its terms", "around 0; its size says little"),
    MetricInfo("actor/ppo_kl", "nats", "approximate KL from the old policy of the ratio to the current one", "below 0.1"),
    MetricInfo("actor/ratio_max", "", "largest ratio of the current policy to the old one", "below 10"),
    MetricInfo("actor/reference_kl", "nats", "KL from policy to reference before a token is trained (k3)", "grows slowly"),
    MetricInfo("actor/skipped_steps", "steps", "optimizer steps thrown away for non-finite loss or gradient", "0"),
    MetricInfo("actor/steps", "steps", "optimizer steps of this update"),
    MetricInfo("along/accuracy", "share", "held-out answers that are right, of an evaluation along the stream"),
    MetricInfo("along/first_version", "", "oldest version that sampled for it"),
    MetricInfo("along/last_version", "", "newest version that sampled for it"),
    MetricInfo("along/response_length", "tokens", "mean length of its answers"),
    MetricInfo("cpu/NAME", "cores", "kept busy by the process of that name and all it started, on the coordinator's host"),
    MetricInfo("critic/advantages/max", "", "largest advantage"),
    MetricInfo("critic/advantages/mean", "", "mean advantage", "near 0 when whitened"),
    MetricInfo("critic/advantages/min", "", "smallest advantage"),
    MetricInfo("critic/grad_norm", "", "mean gradient norm of the steps, before clipping", "no spikes of ten times the usual"),
    MetricInfo("critic/lr", "", "learning rate of the value model"),
    MetricInfo("critic/returns/max", "", "largest value target"),
    MetricInfo("critic/returns/mean", "", "mean value target"),
    MetricInfo("critic/returns/min", "", "smallest value target"),
    MetricInfo("critic/skipped_steps", "steps", "optimizer steps thrown away for non-finite loss or gradient", "0"),
    MetricInfo("critic/steps", "steps", "optimizer steps of this update"),
    MetricInfo("critic/value_bias", "reward", "mean V - R over tokens of finished responses; above 0: too hopeful", "-0.2 to 0.2"),
    MetricInfo("critic/value_error_max", "reward", "largest |V - R|", "below the range of the reward"),
    MetricInfo("critic/value_rmse", "reward", "root mean square of V - R", "falling"),
    MetricInfo("critic/values/max", "", "largest value"),
    MetricInfo("critic/values/mean", "", "mean value", "near the mean reward"),
    MetricInfo("critic/values/min", "", "smallest value"),
    MetricInfo("critic/vf_explained_var", "", "share of the returns' variance that values explain (verl: of the value targets')", "above 0, rising"),
    MetricInfo("critic/vf_loss", "", "value loss", "falling"),
    MetricInfo("egae/advantage_abs", "reward", "mean |advantage| before whitening", "above 0"),
    MetricInfo("egae/bootstrap_share", "share", "policy windows behind whose cut a guessed value stands", "below 0.95"),
    MetricInfo("egae/bootstrap_tokens", "share", "policy tokens whose advantage rests on a guessed value", "below 0.95"),
    MetricInfo("egae/boundary_advantage", "", "mean advantage of the last 8 tokens of unfinished windows", "near 0"),
    MetricInfo("egae/boundary_advantage_abs", "reward", "their mean |advantage| before whitening", "not above egae/advantage_abs"),
    MetricInfo("egae/lambda", "", "mean lambda of the policy's advantages", "0.5 to 1"),
    MetricInfo("egae/lambda_by_length", "", "mean lambda by tokens of the response so far", "0.5 to 1", LENGTHS),
    MetricInfo("environment/NAME", "", "mean of what the environment reports under this name"),
    MetricInfo("environment/right_recall", "share", "PAG: right answers that the verdict calls right", "above 0.1, rising"),
    MetricInfo("environment/step_s", "s", "mean time of an environment's answer"),
    MetricInfo("environment/turns", "turns", "mean turns of episodes that end in the batch"),
    MetricInfo("environment/wrong_recall", "share", "PAG: wrong answers that the verdict calls wrong", "above 0.1, rising"),
    MetricInfo("gpu/NAME", "GPUs", "kept busy by the process of that name and all it started, by NVML", "near the number that it has"),
    MetricInfo("heartbeat/NAME", "s", "time since the process was last heard", "a few seconds"),
    MetricInfo("idle/generator", "share", "training time since the coordinator started in which generators had nothing to generate", "near 0"),
    MetricInfo("idle/learner", "share", "training time since the coordinator started in which the learner waited for a batch", "near 0"),
    MetricInfo("ledger/abandoned", "tokens", "trained on a lineage that was given up; outside the balance"),
    MetricInfo("ledger/dropped", "tokens", "not trained, for any reason"),
    MetricInfo("ledger/dropped/boundary_mask", "tokens", "at the end of unfinished windows"),
    MetricInfo("ledger/dropped/discarded_at_end", "tokens", "not trained because the run ended"),
    MetricInfo("ledger/dropped/filtered", "tokens", "of groups that were not admitted"),
    MetricInfo("ledger/dropped/non_finite", "tokens", "with NaN or Inf in logprobs, values or gradients", "0"),
    MetricInfo("ledger/dropped/overlong", "tokens", "of responses at the length limit (algorithm.overlong.filter)"),
    MetricInfo("ledger/dropped/reward_failed", "tokens", "of trajectories without a score", "0"),
    MetricInfo("ledger/dropped/stale", "tokens", "older than the staleness bound", "below a few percent"),
    MetricInfo("ledger/dropped/value_warmup", "tokens", "of the value model's warm-up"),
    MetricInfo("ledger/dropped/zero_weight", "tokens", "with loss weight 0, such as masked hot tokens"),
    MetricInfo("ledger/evaluation", "tokens", "of evaluations; outside the balance"),
    MetricInfo("ledger/generated", "tokens", "response tokens journaled: the sum of the balance"),
    MetricInfo("ledger/in_flight", "tokens", "in an incomplete window, or waiting for a reward"),
    MetricInfo("ledger/discarded_at_hold", "tokens", "sampled and thrown away at a hold; outside the balance", "little beside generated"),
    MetricInfo("ledger/lost", "tokens", "sampled, then refused, sampled elsewhere too, or unsent at a death; outside the balance", "0 without faults"),
    MetricInfo("ledger/inserted", "tokens", "inserted by templates, tools, environments; outside the balance", "0 for single answers"),
    MetricInfo("ledger/ready", "tokens", "trainable, not in a committed update"),
    MetricInfo("ledger/trained_policy", "tokens", "in the policy loss of a committed update"),
    MetricInfo("ledger/trained_value", "tokens", "of trajectories in a committed value update"),
    MetricInfo("ledger/value_dropped", "tokens", "of trajectories that no value update will train"),
    MetricInfo("ledger/value_finished", "tokens", "of scored trajectories = trained_value + value_waiting + value_dropped"),
    MetricInfo("ledger/value_waiting", "tokens", "of trajectories that wait for a value batch"),
    MetricInfo("memory/NAME", "bytes", "resident memory of the process and its children; shared pages count in each", "levels off"),
    MetricInfo("mixture/NAME/asked", "share", "groups asked since the last update", "near mixture/NAME/weight"),
    MetricInfo("mixture/NAME/solved", "", "mean correctness (or reward) of answers that end in the batch", "rising"),
    MetricInfo("mixture/NAME/trained", "share", "tokens of the batch"),
    MetricInfo("mixture/NAME/weight", "share", "by task.schedule, in force at the update"),
    MetricInfo("perf/carried_age", "updates", "mean age of carried keys and values"),
    MetricInfo("perf/carried_bytes", "bytes", "carried keys and values of all models and ranks", "at most learner.carried_gib a rank"),
    MetricInfo("perf/carried_hits", "sequences", "later windows whose whole context was carried, by all models"),
    MetricInfo("perf/carried_misses", "sequences", "later windows with context to compute, by all models", "0, but after a checkpoint"),
    MetricInfo("perf/carried_recomputed_tokens", "tokens", "of that context; part of perf/context_share", "few, but after a checkpoint"),
    MetricInfo("perf/context_share", "share", "of the policy's training passes: tokens that are prompt or prefix"),
    MetricInfo("perf/cpu_s", "s", "CPU time of the run so far on the coordinator's host, evaluations included"),
    MetricInfo("perf/generated_tokens_per_s", "tokens/s", "response tokens that arrived since the last update"),
    MetricInfo("perf/loss_tokens", "tokens", "in the policy loss of this update"),
    MetricInfo("perf/policy_tokens", "tokens", "computed by policy and reference in this update, context and every pass included"),
    MetricInfo("perf/preempted", "", "answers whose keys and values gave way to others', by connected generators since their start; they are computed once more", "0; else more KV cache, or fewer generator.max_num_seqs"),
    MetricInfo("perf/prefill_per_token", "", "prompt and prefix tokens computed per sampled one, by connected generators since their start", "near prompt over answer"),
    MetricInfo("perf/tokens_per_s", "tokens/s", "tokens the learner computed in this update"),
    MetricInfo("perf/trained_tokens_per_s", "tokens/s", "policy tokens trained since the last update"),
    MetricInfo("perf/useful_share", "share", "computed tokens that are not padding", "above 0.95"),
    MetricInfo("perf/value_tokens", "tokens", "computed by the value model in this update, context and every pass included"),
    MetricInfo("ranker/grad_norm", "", "mean gradient norm of the steps, before clipping", "no spikes of ten times the usual"),
    MetricInfo("ranker/left_out", "lists", "rows that teach nothing: no click, or an empty answer", "0"),
    MetricInfo("ranker/lists", "lists", "lists of candidates trained in this update"),
    MetricInfo("ranker/loss", "nats", "cross-entropy of candidates against clicks", "falls, below 0.33 with one click in ten"),
    MetricInfo("ranker/lr", "", "learning rate of the ranker"),
    MetricInfo("ranker/steps", "steps", "optimizer steps of this update"),
    MetricInfo("response_length/clip_ratio", "share", "responses cut at the length limit", "below 0.1"),
    MetricInfo("response_length/max", "tokens", "longest response that ends in this batch"),
    MetricInfo("response_length/mean", "tokens", "mean length of responses that end in this batch"),
    MetricInfo("response_length/min", "tokens", "shortest response that ends in this batch"),
    MetricInfo("reward/lines_failed", "windows", "trained without line rewards because scoring failed", "0"),
    MetricInfo("reward/lines_late", "windows", "trained without line rewards because the deadline passed", "0; few while a source hangs"),
    MetricInfo("reward/max", "", "largest reward of responses that end in this batch"),
    MetricInfo("reward/mean", "", "mean reward of responses that end in this batch", "rising"),
    MetricInfo("reward/min", "", "smallest reward of responses that end in this batch"),
    MetricInfo("reward/process_tokens", "tokens", "that earned something before their response's last token", "above 0 where lines are scored"),
    MetricInfo("reward/process_unfinished", "tokens", "those of unfinished responses", "above 0 in a stream of windows"),
    MetricInfo("reward/std", "", "standard deviation of those rewards", "above 0"),
    MetricInfo("rewards/NAME/audited_mean", "", "mean audited reward of the newest audited answers", "rises with rewards/NAME/mean"),
    MetricInfo("rewards/NAME/audits", "answers", "audited answers"),
    MetricInfo("rewards/NAME/audits_failed", "share", "audits without a score", "near 0"),
    MetricInfo("rewards/NAME/count", "answers", "scored answers, failures included"),
    MetricInfo("rewards/NAME/edit_distance", "characters", "largest edit distance in a group, mean over sampled groups", "above 0"),
    MetricInfo("rewards/NAME/entropy_estimate", "nats", "mean negative logprob per sampled token, an estimate of the sampling entropy", "falls slowly, not to 0"),
    MetricInfo("rewards/NAME/failed", "share", "scorings without a score", "near 0"),
    MetricInfo("rewards/NAME/gap", "reward", "mean reward less mean audited reward of the newest audited answers", "near its first value"),
    MetricInfo("rewards/NAME/in_flight", "answers", "with a reward worker, audits apart; part of rewards/NAME/queue", "above 0 while rewards/NAME/queue is"),
    MetricInfo("rewards/NAME/length", "tokens", "mean length of scored answers"),
    MetricInfo("rewards/NAME/length_correlation", "", "correlation of length and reward, newest answers", "below 0.5, unless long answers are the right ones"),
    MetricInfo("rewards/NAME/mean", "", "mean reward", "rising"),
    MetricInfo("rewards/NAME/queue", "answers", "waiting for a score, audits included", "a few batches at most"),
    MetricInfo("rewards/NAME/seconds", "s", "mean time of a scoring", "far below the source's timeout_s"),
    MetricInfo("rewards/NAME/std", "", "standard deviation of those rewards", "above 0"),
    MetricInfo("rollout/ess", "share", "effective sample size of importance weights", "above 0.5"),
    MetricInfo("rollout/finished_length", "tokens", "mean length of responses finished since the last update", "close to response_length/mean once the stream is warm"),
    MetricInfo("rollout/hot_over_cap", "share", "trained hot tokens (FIRE) cut to generator.fire.ratio_cap", "below 0.5"),
    MetricInfo("rollout/hot_ratio_mean", "", "mean of policy over hot sampler at hot tokens (FIRE), uncapped", "at most 1; near 0: what was tried is hardly ever done"),
    MetricInfo("rollout/hot_tokens", "tokens", "hot tokens (FIRE) of this batch", "one per response that begins in it"),
    MetricInfo("rollout/logprob_diff", "nats", "mean |learner - generator| logprob where the whole prefix has the learner's version", "below 0.001 in fp32, 0.05 in bf16"),
    MetricInfo("rollout/logprob_diff_max", "nats", "largest such difference", "below 1"),
    MetricInfo("rollout/mismatch_kl", "nats", "KL from generator to learner at one version", "near 0"),
    MetricInfo("rollout/weight_above_2", "share", "trained tokens over 2 times as likely to the learner as to the sampler", "below 0.05"),
    MetricInfo("rollout/weight_above_5", "share", "trained tokens over 5 times as likely to the learner as to the sampler", "below 0.05"),
    MetricInfo("rollout/weight_below_1_over_2", "share", "trained tokens over 2 times as likely to the sampler as to the learner", "below 0.05"),
    MetricInfo("rollout/weight_below_1_over_5", "share", "trained tokens over 5 times as likely to the sampler as to the learner", "below 0.05"),
    MetricInfo("rollout/weight_dropped", "share", "trained tokens with importance weight 0 (mask over the cap, or filter)", "below 0.05"),
    MetricInfo("rollout/weight_max", "", "largest importance weight before the cap", "below 10"),
    MetricInfo("rollout/weight_mean", "", "mean importance weight before the cap", "0.8 to 1.2"),
    MetricInfo("rollout/weight_over_cap", "share", "trained tokens over the cap", "below 0.05"),
    MetricInfo("schedule/admitted_share", "share", "complete groups that dynamic sampling admitted", "above 0.2; falls as the policy gets right"),
    MetricInfo("schedule/batch_windows", "windows", "in this batch"),
    MetricInfo("schedule/bound", "windows", "maximum number of windows in play"),
    MetricInfo("schedule/filtered_groups", "groups", "dropped by dynamic sampling since the last update"),
    MetricInfo("schedule/held", "trajectories", "held back by the staleness bound"),
    MetricInfo("schedule/in_play", "windows", "windows in play, as the staleness bound counts them", "at most schedule/bound"),
    MetricInfo("schedule/learner_busy", "", "1 while a batch is with the learner"),
    MetricInfo("schedule/live", "trajectories", "being generated"),
    MetricInfo("schedule/paused", "trajectories", "waiting for their environment", "small beside live ones"),
    MetricInfo("schedule/ready_windows", "windows", "complete and not taken"),
    MetricInfo("schedule/scoring", "trajectories", "wait for their reward"),
    MetricInfo("schedule/unfinished_share", "share", "windows of unfinished responses in this batch"),
    MetricInfo("schedule/value_waiting", "trajectories", "finished, wait for a value batch"),
    MetricInfo("staleness/drop_share", "share", "tokens dropped or masked as stale, by tenth of the responses, shortest first", "alike in all tenths, below a few percent", TENTHS),
    MetricInfo("staleness/dropped_share", "share", "tokens dropped as stale, of those generated since the last update", "below a few percent"),
    MetricInfo("staleness/length", "tokens", "mean length by tenth of the responses, shortest first", "", TENTHS),
    MetricInfo("staleness/mask_share", "share", "tokens masked for other reasons, by tenth of the responses, shortest first", "alike in all tenths, but for a boundary mask", TENTHS),
    MetricInfo("staleness/max", "updates", "largest age of a trained token", "at most schedule.max_staleness"),
    MetricInfo("staleness/mean", "updates", "mean age of trained tokens", "at most schedule.max_staleness"),
    MetricInfo("timing_s/advantages", "s", "advantages and value targets"),
    MetricInfo("timing_s/checkpoint", "s", "standstill of the learner for a checkpoint"),
    MetricInfo("timing_s/forward", "s", "values and proximal logprobs of the update's start"),
    MetricInfo("timing_s/policy", "s", "passes and steps of the policy"),
    MetricInfo("timing_s/publish", "s", "standstill of the learner for a version of its weights"),
    MetricInfo("timing_s/ranker", "s", "passes and steps of the ranker"),
    MetricInfo("timing_s/round_trip", "s", "from sending the batch to hearing that it is done", "little more than timing_s/update"),
    MetricInfo("timing_s/update", "s", "the whole update in the learner"),
    MetricInfo("timing_s/value", "s", "passes and steps of the value model"),
    MetricInfo("timing_s/wait_for_batch", "s", "the learner's wait before the update", "short against timing_s/update"),
    MetricInfo("transport/rejected", "messages", "refused since the coordinator started: malformed, not allowed, impossible values, connections without keys", "0; a few when processes come back"),
    MetricInfo("value/at_cut", "", "mean value at the cuts of unfinished windows", "near the mean return"),
    MetricInfo("value/bias", "reward", "mean V - R by tenth of the response", "-0.3 to 0.3", TENTHS),
    MetricInfo("value/cut_bias", "reward", "mean V - R at cuts of responses that have finished", "-0.2 to 0.2"),
    MetricInfo("value/cut_rmse", "reward", "root mean square of V - R there: the cost of EGAE's assumption", "falling"),
    MetricInfo("value/rmse", "reward", "root mean square of V - R by tenth of the response", "falling", TENTHS),
    MetricInfo("weights/slowest_loaded", "version", "oldest version a generator samples from", "close to the newest"),
)
# fmt: on

METRICS: dict[str, MetricInfo] = {info.name: info for info in _ALL}
"""By name; NAME stands for a process, a source of rewards, a domain, an environment's figure."""


def pattern_of(name: str) -> str:
    """Return the name of a metric in METRICS, where NAME stands for the variable part."""
    prefix, _, rest = name.partition("/")
    if prefix in ("cpu", "gpu", "heartbeat", "memory") or (
        prefix == "environment" and name not in METRICS
    ):
        return f"{prefix}/NAME"
    return f"{prefix}/NAME/{rest.rpartition('/')[2]}" if prefix in ("mixture", "rewards") else name


def info_of(name: str) -> MetricInfo:
    """Return the description of a metric; KeyError where METRICS has none."""
    return METRICS[pattern_of(name)]
