"""Every metric by name: its unit, meaning and healthy range, and for an array what each of its
numbers stands for. This is the one place where metrics are described.

Whoever emits a metric adds its line here; storage copies the table into SQL, docs and dashboard
read it. Names follow verl's prefixes (actor/ critic/ response_length/ timing_s/ perf/) where it
has them.
Units: "" is a plain number, "share" is between 0 and 1. Entries are sorted by name.
"""

from typing import NamedTuple


class MetricInfo(NamedTuple):
    """What a metric means. `healthy` is a range or a tendency in words, empty if there is none."""

    name: str
    unit: str
    meaning: str
    healthy: str = ""
    bins: tuple[str, ...] = ()
    """What each number of an array stands for, in order; empty for a metric that is one number."""


TENTHS = tuple(f"{10 * tenth} to {10 * tenth + 10} %" for tenth in range(10))
LENGTH_BINS = (64, 256, 1024, 4096, 16384)
"""Upper ends of the response lengths by which lambda is reported; the last bin is open."""
LENGTHS = (*(f"up to {end}" for end in LENGTH_BINS), f"over {LENGTH_BINS[-1]}")


# One line each: a table is read by its columns.
# ruff: noqa: E501
# fmt: off
_ALL = (
    MetricInfo("actor/advantage_mean", "", "mean advantage of trained tokens as the loss sees them", "-0.5 to 0.5"),
    MetricInfo("actor/advantage_std", "", "spread of those advantages; 0 means there is nothing to learn", "above 0.01; near 1 when whitened"),
    MetricInfo("actor/entropy", "nats", "mean entropy of the policy over trained tokens", "falls slowly, does not collapse to 0"),
    MetricInfo("actor/grad_norm", "", "norm of the policy's gradient before clipping", "no spikes of ten times the usual"),
    MetricInfo("actor/lr", "", "learning rate of the policy"),
    MetricInfo("actor/pg_clipfrac", "share", "trained tokens whose ratio was clipped", "0.01 to 0.2"),
    MetricInfo("actor/pg_clipfrac_dual", "share", "trained tokens with negative advantage held by the dual clip", "near 0"),
    MetricInfo("actor/pg_clipfrac_lower", "share", "trained tokens clipped at the lower bound", "below 0.1"),
    MetricInfo("actor/pg_clipfrac_upper", "share", "trained tokens with positive advantage clipped at the upper bound", "below 0.1"),
    MetricInfo("actor/pg_loss", "", "clipped policy loss", "around 0; its size says little"),
    MetricInfo("actor/ppo_kl", "nats", "approximate KL from the anchoring to the current policy", "below 0.1"),
    MetricInfo("actor/ratio_max", "", "largest ratio of the policy to its anchor", "below 10"),
    MetricInfo("actor/reference_kl", "nats", "KL from the policy to the reference at the update's start (k3), where there is a reference", "grows slowly"),
    MetricInfo("actor/skipped_steps", "steps", "optimizer steps of the policy thrown away for a loss or gradient that is not finite", "0"),
    MetricInfo("actor/steps", "steps", "optimizer steps of the policy in this update"),
    MetricInfo("cpu/NAME", "cores", "that the process of that name and all that it started kept busy over the last seconds, on the coordinator's host"),
    MetricInfo("critic/advantages/max", "", "largest advantage of the batch"),
    MetricInfo("critic/advantages/mean", "", "mean advantage of the batch", "near 0 when whitened"),
    MetricInfo("critic/advantages/min", "", "smallest advantage of the batch"),
    MetricInfo("critic/grad_norm", "", "norm of the value model's gradient before clipping", "no spikes of ten times the usual"),
    MetricInfo("critic/lr", "", "learning rate of the value model"),
    MetricInfo("critic/returns/max", "", "largest value target of the batch"),
    MetricInfo("critic/returns/mean", "", "mean value target of the batch"),
    MetricInfo("critic/returns/min", "", "smallest value target of the batch"),
    MetricInfo("critic/skipped_steps", "steps", "optimizer steps of the value model thrown away for a loss or gradient that is not finite", "0"),
    MetricInfo("critic/steps", "steps", "optimizer steps of the value model in this update"),
    MetricInfo("critic/value_bias", "reward", "mean of V - R over tokens of finished responses: above 0 the critic hopes too much", "-0.2 to 0.2"),
    MetricInfo("critic/value_error_max", "reward", "largest |V - R|", "below the range of the reward"),
    MetricInfo("critic/value_rmse", "reward", "root mean square of V - R", "falling"),
    MetricInfo("critic/values/max", "", "largest value the critic gave"),
    MetricInfo("critic/values/mean", "", "mean value the critic gave", "near the mean reward"),
    MetricInfo("critic/values/min", "", "smallest value the critic gave"),
    MetricInfo("critic/vf_explained_var", "", "variance of the targets that the critic explains", "above 0, rising towards 1"),
    MetricInfo("critic/vf_loss", "", "value loss", "falling"),
    MetricInfo("egae/advantage_abs", "reward", "mean |advantage| of the windows' tokens before whitening", "above 0"),
    MetricInfo("egae/bootstrap_share", "share", "policy windows that end unfinished, so that EGAE cuts them", "below 0.95"),
    MetricInfo("egae/bootstrap_tokens", "share", "policy tokens whose advantage rests on a guessed value, for their window was cut", "below 0.95"),
    MetricInfo("egae/boundary_advantage", "", "mean advantage of the last 8 tokens of unfinished windows", "near 0"),
    MetricInfo("egae/boundary_advantage_abs", "reward", "mean |advantage| of the last 8 tokens of unfinished windows before whitening", "not above egae/advantage_abs"),
    MetricInfo("egae/lambda", "", "mean lambda of the policy's advantages in force", "0.5 to 1"),
    MetricInfo("egae/lambda_by_length", "", "mean lambda of windows, by the tokens of the response so far", "0.5 to 1", LENGTHS),
    MetricInfo("environment/NAME", "", "what an environment says of its steps, the mean of those that say it"),
    MetricInfo("environment/right_recall", "share", "PAG: right answers that the policy's verdict calls right", "above 0.1, rising"),
    MetricInfo("environment/step_s", "s", "mean time in which an environment answered"),
    MetricInfo("environment/turns", "turns", "mean turns of the policy in episodes that end in the batch"),
    MetricInfo("environment/wrong_recall", "share", "PAG: wrong answers that the policy's verdict calls wrong", "above 0.1, rising"),
    MetricInfo("gpu/NAME", "GPUs", "that the process of that name and all that it started kept busy over the last seconds, on the coordinator's host, as NVML says", "near the number that it has"),
    MetricInfo("heartbeat/NAME", "s", "since the coordinator last heard the process of that name", "a few seconds"),
    MetricInfo("idle/generator", "share", "training time so far in which generators had nothing to generate", "near 0"),
    MetricInfo("idle/learner", "share", "training time so far in which the learner waited for a batch", "near 0"),
    MetricInfo("ledger/abandoned", "tokens", "trained on a lineage that was given up; outside the balance"),
    MetricInfo("ledger/dropped", "tokens", "left the balance without training, all reasons"),
    MetricInfo("ledger/dropped/boundary_mask", "tokens", "left out at the end of unfinished windows"),
    MetricInfo("ledger/dropped/discarded_at_end", "tokens", "not trained because the run ended"),
    MetricInfo("ledger/dropped/filtered", "tokens", "of groups that the algorithm did not admit"),
    MetricInfo("ledger/dropped/non_finite", "tokens", "with NaN or Inf in logprobs, values or gradients", "0"),
    MetricInfo("ledger/dropped/overlong", "tokens", "of responses at the length limit, left out by algorithm.overlong.filter"),
    MetricInfo("ledger/dropped/reward_failed", "tokens", "whose trajectory could not be scored", "0"),
    MetricInfo("ledger/dropped/stale", "tokens", "older than the staleness bound", "below a few percent"),
    MetricInfo("ledger/dropped/value_warmup", "tokens", "generated while only the value model was trained"),
    MetricInfo("ledger/dropped/zero_weight", "tokens", "whose loss weight is 0, such as hot tokens that are masked"),
    MetricInfo("ledger/evaluation", "tokens", "generated for evaluations; outside the balance"),
    MetricInfo("ledger/generated", "tokens", "response tokens journaled = trained_policy + ready + in_flight + dropped"),
    MetricInfo("ledger/in_flight", "tokens", "in a window that is not complete, or waits for its reward"),
    MetricInfo("ledger/discarded_at_hold", "tokens", "sampled and thrown away because a hold came; outside the balance", "little beside generated"),
    MetricInfo("ledger/lost", "tokens", "sampled, but refused when they came, or sampled by another generator as well while their own was silent, or unsent when it died; outside the balance", "0 without faults"),
    MetricInfo("ledger/inserted", "tokens", "put into sequences by templates, tools and environments; outside the balance", "0 for single answers"),
    MetricInfo("ledger/ready", "tokens", "trainable, not in a committed update"),
    MetricInfo("ledger/trained_policy", "tokens", "in the policy loss of a committed update"),
    MetricInfo("ledger/trained_value", "tokens", "of finished trajectories in a committed value update"),
    MetricInfo("ledger/value_dropped", "tokens", "of finished trajectories that no value update will train"),
    MetricInfo("ledger/value_finished", "tokens", "of scored trajectories = trained_value + value_waiting + value_dropped"),
    MetricInfo("ledger/value_waiting", "tokens", "of finished trajectories that wait for a value batch"),
    MetricInfo("memory/NAME", "bytes", "resident memory of the process of that name and of all that it started, on the coordinator's host; pages they share count in each", "levels off"),
    MetricInfo("mixture/NAME/asked", "share", "groups of that domain among those asked since the last update", "near mixture/NAME/weight"),
    MetricInfo("mixture/NAME/solved", "", "mean of right (1) and wrong (0) answers of that domain that end in the batch, of rewards where nothing says what is right", "rising"),
    MetricInfo("mixture/NAME/trained", "share", "tokens of that domain in the batch"),
    MetricInfo("mixture/NAME/weight", "share", "of that domain by task.schedule, in force while the update was made"),
    MetricInfo("perf/carried_age", "updates", "mean age of the keys and values that were carried over from earlier updates"),
    MetricInfo("perf/carried_bytes", "bytes", "of keys and values that are carried over, of all models and ranks", "at most learner.carried_gib a rank"),
    MetricInfo("perf/carried_hits", "sequences", "beyond their first window whose context was carried over, all of it, by all models"),
    MetricInfo("perf/carried_misses", "sequences", "beyond their first window of whose context something had to be computed, by all models", "0, but after a checkpoint"),
    MetricInfo("perf/carried_recomputed_tokens", "tokens", "of that context, computed again; part of perf/context_share", "few, but after a checkpoint"),
    MetricInfo("perf/context_share", "share", "tokens computed that are prompt or prefix"),
    MetricInfo("perf/cpu_s", "s", "CPU seconds of the run so far: of its processes on the coordinator's host and all that they started, evaluations included"),
    MetricInfo("perf/generated_tokens_per_s", "tokens/s", "response tokens that arrived since the last update"),
    MetricInfo("perf/loss_tokens", "tokens", "in the policy loss of this update"),
    MetricInfo("perf/prefill_per_token", "", "tokens of prompts and prefixes that the connected generators computed for each that they sampled, since they started; what their caches held is not computed", "near prompt over answer"),
    MetricInfo("perf/tokens_per_s", "tokens/s", "tokens the learner computed in this update"),
    MetricInfo("perf/trained_tokens_per_s", "tokens/s", "policy tokens trained since the last update"),
    MetricInfo("perf/useful_share", "share", "tokens computed that are not padding", "above 0.95"),
    MetricInfo("ranker/grad_norm", "", "norm of the gradient of the ranker that is trained along, before clipping", "no spikes of ten times the usual"),
    MetricInfo("ranker/left_out", "lists", "rows of answers that end in this batch and teach the ranker nothing: no click, or an empty answer", "0"),
    MetricInfo("ranker/lists", "lists", "lists of candidates that the ranker learnt from in this update"),
    MetricInfo("ranker/loss", "nats", "cross-entropy of each candidate's score against its click", "falls, below 0.33 with one click in ten"),
    MetricInfo("ranker/lr", "", "learning rate of the ranker"),
    MetricInfo("ranker/steps", "steps", "optimizer steps of the ranker in this update"),
    MetricInfo("response_length/clip_ratio", "share", "responses cut at the length limit", "below 0.1"),
    MetricInfo("response_length/max", "tokens", "longest response that ends in this batch"),
    MetricInfo("response_length/mean", "tokens", "mean length of responses that end in this batch"),
    MetricInfo("response_length/min", "tokens", "shortest response that ends in this batch"),
    MetricInfo("reward/lines_failed", "windows", "of this batch, trained without rewards of lines because their scoring failed", "0"),
    MetricInfo("reward/lines_late", "windows", "of this batch, ready before their lines were scored because the deadline of reward.process.source had passed", "0; few while a source hangs"),
    MetricInfo("reward/max", "", "largest reward of responses that end in this batch"),
    MetricInfo("reward/mean", "", "mean reward of responses that end in this batch", "rising"),
    MetricInfo("reward/min", "", "smallest reward of responses that end in this batch"),
    MetricInfo("reward/process_tokens", "tokens", "of this batch that earned something before the last token of their response (line ends, mostly)", "above 0 where lines are scored"),
    MetricInfo("reward/process_unfinished", "tokens", "those of them in windows whose response goes on", "above 0 in a stream of windows"),
    MetricInfo("reward/std", "", "standard deviation of those rewards", "above 0"),
    MetricInfo("rewards/NAME/audited_mean", "", "mean audited reward of the newest audited answers of that source: what the audit's source says of them", "rises with rewards/NAME/mean"),
    MetricInfo("rewards/NAME/audits", "answers", "of that source which the audit's source looked at since the last update"),
    MetricInfo("rewards/NAME/audits_failed", "share", "audits since the last update that gave no score", "near 0"),
    MetricInfo("rewards/NAME/count", "answers", "scored by that source since the last update, the scorings that failed included"),
    MetricInfo("rewards/NAME/edit_distance", "characters", "largest edit distance between two answers of a group, mean over the groups that were looked at since the last update", "above 0; falls as answers of a prompt become one"),
    MetricInfo("rewards/NAME/entropy_estimate", "nats", "mean negative logprob a sampled token of the answers scored since the last update: an estimate of the entropy of what the generators sample from", "falls slowly, does not collapse to 0"),
    MetricInfo("rewards/NAME/failed", "share", "scorings since the last update that gave no score", "near 0"),
    MetricInfo("rewards/NAME/gap", "reward", "mean reward less mean audited reward of the newest audited answers: what the source pays for and the audit does not find", "near its first value"),
    MetricInfo("rewards/NAME/in_flight", "answers", "handed to a reward worker and not scored yet, audits apart; part of rewards/NAME/queue", "above 0 while rewards/NAME/queue is"),
    MetricInfo("rewards/NAME/length", "tokens", "mean length of the answers scored since the last update"),
    MetricInfo("rewards/NAME/length_correlation", "", "correlation of length and reward over the newest answers", "below 0.5, unless long answers are the right ones"),
    MetricInfo("rewards/NAME/mean", "", "mean reward of the answers scored since the last update", "rising"),
    MetricInfo("rewards/NAME/queue", "answers", "that wait for a score of that source, audits included", "a few batches at most"),
    MetricInfo("rewards/NAME/seconds", "s", "mean seconds of a scoring", "far below the source's timeout_s"),
    MetricInfo("rewards/NAME/std", "", "standard deviation of those rewards", "above 0"),
    MetricInfo("rollout/ess", "share", "effective sample size of the importance weights over trained tokens", "above 0.5"),
    MetricInfo("rollout/finished_length", "tokens", "mean length of responses that finished since the last update", "close to response_length/mean once the stream is warm"),
    MetricInfo("rollout/hot_over_cap", "share", "trained hot tokens (FIRE) whose weight was cut to generator.fire.ratio_cap", "below 0.5"),
    MetricInfo("rollout/hot_ratio_mean", "", "mean of the policy's probability over that of the hot sampler, over hot tokens (FIRE), before any cap", "at most 1, but for chance; near 0 means that the policy hardly ever does what was tried"),
    MetricInfo("rollout/hot_tokens", "tokens", "hot tokens (FIRE) of this batch, trained or not", "one for each response that begins in it"),
    MetricInfo("rollout/logprob_diff", "nats", "mean |learner - generator| logprob where the whole prefix has the learner's version", "below 0.001 in fp32, 0.05 in bf16"),
    MetricInfo("rollout/logprob_diff_max", "nats", "largest such difference", "below 1"),
    MetricInfo("rollout/mismatch_kl", "nats", "KL from generator to learner at the same version", "near 0"),
    MetricInfo("rollout/weight_above_2", "share", "trained tokens that the learner finds over 2 times as likely as the sampler did", "below 0.05"),
    MetricInfo("rollout/weight_above_5", "share", "trained tokens that the learner finds over 5 times as likely as the sampler did", "below 0.05"),
    MetricInfo("rollout/weight_below_1_over_2", "share", "trained tokens that the sampler found over 2 times as likely as the learner does", "below 0.05"),
    MetricInfo("rollout/weight_below_1_over_5", "share", "trained tokens that the sampler found over 5 times as likely as the learner does", "below 0.05"),
    MetricInfo("rollout/weight_dropped", "share", "trained tokens whose importance weight is 0 (over the cap with over_cap = mask, or filtered)", "below 0.05"),
    MetricInfo("rollout/weight_max", "", "largest importance weight before the cap", "below 10"),
    MetricInfo("rollout/weight_mean", "", "mean importance weight before the cap; 1 where sampler and learner agree", "0.8 to 1.2"),
    MetricInfo("rollout/weight_over_cap", "share", "trained tokens whose weight was cut to the cap or dropped for it", "below 0.05"),
    MetricInfo("schedule/admitted_share", "share", "complete groups since the last update that dynamic sampling admitted", "above 0.2; falls as the policy gets everything right"),
    MetricInfo("schedule/batch_windows", "windows", "in this batch"),
    MetricInfo("schedule/bound", "windows", "most windows that may be open or ready"),
    MetricInfo("schedule/filtered_groups", "groups", "dropped by dynamic sampling since the last update"),
    MetricInfo("schedule/held", "trajectories", "held back by the staleness bound"),
    MetricInfo("schedule/in_play", "windows", "open or ready, as the staleness bound counts them", "at most schedule/bound"),
    MetricInfo("schedule/learner_busy", "", "1 while a batch is with the learner"),
    MetricInfo("schedule/live", "trajectories", "being generated"),
    MetricInfo("schedule/paused", "trajectories", "trajectories that wait for their environment", "small beside live ones"),
    MetricInfo("schedule/ready_windows", "windows", "complete and not taken"),
    MetricInfo("schedule/scoring", "trajectories", "wait for their reward"),
    MetricInfo("schedule/unfinished_share", "share", "windows of this batch whose response goes on"),
    MetricInfo("schedule/value_waiting", "trajectories", "finished, wait for a value batch"),
    MetricInfo("staleness/drop_share", "share", "tokens dropped or masked for their age, over the staleness bound, in each tenth of the responses, the shortest first", "much the same in all tenths, below a few percent", TENTHS),
    MetricInfo("staleness/dropped_share", "share", "tokens dropped for their age since the last update, of those generated since then", "below a few percent"),
    MetricInfo("staleness/length", "tokens", "mean length of the responses in each tenth of them, the shortest first", "", TENTHS),
    MetricInfo("staleness/mask_share", "share", "tokens masked for another reason than age (boundary mask, overlong filter, not finite) in each tenth of the responses, the shortest first", "much the same in all tenths; a boundary mask falls on the long ones", TENTHS),
    MetricInfo("staleness/max", "updates", "largest age of a trained token", "at most schedule.max_staleness"),
    MetricInfo("staleness/mean", "updates", "mean age of trained tokens", "at most schedule.max_staleness"),
    MetricInfo("timing_s/advantages", "s", "advantages and value targets of this update"),
    MetricInfo("timing_s/checkpoint", "s", "writing a checkpoint in this update"),
    MetricInfo("timing_s/forward", "s", "values and proximal logprobs at the update's start"),
    MetricInfo("timing_s/policy", "s", "forward, backward and steps of the policy"),
    MetricInfo("timing_s/publish", "s", "making the new weights available"),
    MetricInfo("timing_s/ranker", "s", "forward, backward and steps of the ranker that is trained along"),
    MetricInfo("timing_s/round_trip", "s", "from sending the batch to hearing that it is done", "little more than timing_s/update"),
    MetricInfo("timing_s/update", "s", "the whole update in the learner"),
    MetricInfo("timing_s/value", "s", "forward, backward and steps of the value model"),
    MetricInfo("timing_s/wait_for_batch", "s", "the learner's wait before this update", "short against timing_s/update"),
    MetricInfo("transport/rejected", "messages", "refused since the coordinator started: no message at all, not for their sender to send, or with values that cannot be; connections without the run's keys", "0; a few when processes come back"),
    MetricInfo("value/at_cut", "", "mean value at the cuts of unfinished windows", "near the mean return"),
    MetricInfo("value/bias", "reward", "mean of V - R in each tenth of the response", "-0.3 to 0.3", TENTHS),
    MetricInfo("value/cut_bias", "reward", "mean of V - R at the cuts of responses that have since finished", "-0.2 to 0.2"),
    MetricInfo("value/cut_rmse", "reward", "root mean square of V - R there: what the closing assumption of EGAE costs", "falling"),
    MetricInfo("value/rmse", "reward", "root mean square of V - R in each tenth of the response", "falling", TENTHS),
    MetricInfo("weights/slowest_loaded", "version", "oldest weight version a generator samples from", "close to the newest"),
)
# fmt: on

METRICS: dict[str, MetricInfo] = {info.name: info for info in _ALL}
"""By name; NAME in a name stands for that of a process, a source of rewards, a domain or
what an environment says."""


def pattern_of(name: str) -> str:
    """The name under which METRICS describes a metric: that of a process, a source of rewards, a
    domain or what an environment says is NAME there."""
    prefix, _, rest = name.partition("/")
    if prefix in ("cpu", "gpu", "heartbeat", "memory") or (
        prefix == "environment" and name not in METRICS
    ):
        return f"{prefix}/NAME"
    return f"{prefix}/NAME/{rest.rpartition('/')[2]}" if prefix in ("mixture", "rewards") else name


def info_of(name: str) -> MetricInfo:
    """What METRICS says of a metric; KeyError where it says nothing."""
    return METRICS[pattern_of(name)]
