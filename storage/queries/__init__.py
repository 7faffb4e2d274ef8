"""Every read of run data: what the dashboard and the command line know of storage.

All functions take a run's folder (or the root of run folders), return plain dicts, dataclasses or
pandas frames, are bounded, and never write. A run may be alive, finished, or cut short.
"""

from headrace.run_files.reward_model_run import read_report as reward_model_report
from headrace.run_files.run_folder import latest_name as latest_run
from storage.audit import recount_ledger
from storage.exports import ExportProgress, ExportSummary, export
from storage.exports.sql import QueryResult, ask
from storage.queries.activity import activity, idle_of, lives
from storage.queries.alerts import band_alerts
from storage.queries.answers import GroupAnswer, beginnings, group_answers
from storage.queries.critic import CriticSample, critic_sample
from storage.queries.dropped_pages import DroppedPage, dropped_page
from storage.queries.drops import dropped_tokens, dropped_windows, losses_by_length
from storage.queries.evaluations import (
    asked_number,
    evaluations,
    prompt_history,
    prompt_scores,
    score_summary,
)
from storage.queries.metrics import latest_metrics, metric_arrays, metric_names, metric_series
from storage.queries.metrics_since import MetricsPosition, UpdateMetrics, metrics_since
from storage.queries.processes import (
    CoordinatorStatus,
    coordinator_status,
    events,
    process_health,
    process_table,
    supervisor_events,
    weight_versions,
)
from storage.queries.reward_models import (
    WITHOUT_UPDATES,
    reward_model_config,
    reward_model_curves,
    reward_model_page,
    reward_model_summary,
)
from storage.queries.rewards import (
    ALERT,
    SCORES,
    RewardAlert,
    RewardFailures,
    reward_alerts,
    reward_failures,
    reward_lengths,
    reward_sample,
    reward_sources,
)
from storage.queries.runs import (
    UNREADABLE,
    RunLine,
    any_line,
    list_runs,
    run_config,
    run_line,
)
from storage.queries.stack_dumps import StackDump, last_stacks
from storage.queries.summary import run_figures, run_summary
from storage.queries.trajectories import (
    TrajectoryDetail,
    TrajectoryPage,
    episode_ends,
    prompt_images,
    search_responses,
    trajectory_detail,
    trajectory_page,
)
from storage.text.token_table import MARKS, REASONS, SOURCES

__all__ = [
    "ALERT",
    "MARKS",
    "REASONS",
    "SCORES",
    "SOURCES",
    "UNREADABLE",
    "WITHOUT_UPDATES",
    "CoordinatorStatus",
    "CriticSample",
    "DroppedPage",
    "ExportProgress",
    "ExportSummary",
    "GroupAnswer",
    "MetricsPosition",
    "QueryResult",
    "RewardAlert",
    "RewardFailures",
    "RunLine",
    "StackDump",
    "TrajectoryDetail",
    "TrajectoryPage",
    "UpdateMetrics",
    "activity",
    "any_line",
    "ask",
    "asked_number",
    "band_alerts",
    "beginnings",
    "coordinator_status",
    "critic_sample",
    "dropped_page",
    "dropped_tokens",
    "dropped_windows",
    "episode_ends",
    "evaluations",
    "events",
    "export",
    "group_answers",
    "idle_of",
    "last_stacks",
    "latest_metrics",
    "latest_run",
    "list_runs",
    "lives",
    "losses_by_length",
    "metric_arrays",
    "metric_names",
    "metric_series",
    "metrics_since",
    "process_health",
    "process_table",
    "prompt_history",
    "prompt_images",
    "prompt_scores",
    "recount_ledger",
    "reward_alerts",
    "reward_failures",
    "reward_lengths",
    "reward_model_config",
    "reward_model_curves",
    "reward_model_page",
    "reward_model_report",
    "reward_model_summary",
    "reward_sample",
    "reward_sources",
    "run_config",
    "run_figures",
    "run_line",
    "run_summary",
    "score_summary",
    "search_responses",
    "supervisor_events",
    "trajectory_detail",
    "trajectory_page",
    "weight_versions",
]
