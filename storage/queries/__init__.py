"""Every read of run data: what the dashboard and the command line know of storage.

All functions take a run's folder (or the root of run folders), return plain dicts, dataclasses or
pandas frames, are bounded, and never write. A run may be alive, finished, or cut short.
"""

from storage.exports import export as export
from storage.exports.sql import ask as ask
from storage.queries.activity import activity as activity
from storage.queries.activity import idle_of as idle_of
from storage.queries.activity import lives as lives
from storage.queries.answers import GroupAnswer as GroupAnswer
from storage.queries.answers import beginnings as beginnings
from storage.queries.answers import group_answers as group_answers
from storage.queries.critic import CriticSample as CriticSample
from storage.queries.critic import critic_sample as critic_sample
from storage.queries.drops import dropped_page as dropped_page
from storage.queries.drops import dropped_tokens as dropped_tokens
from storage.queries.drops import losses_by_length as losses_by_length
from storage.queries.evaluations import asked_number as asked_number
from storage.queries.evaluations import evaluations as evaluations
from storage.queries.evaluations import prompt_history as prompt_history
from storage.queries.evaluations import prompt_scores as prompt_scores
from storage.queries.evaluations import score_summary as score_summary
from storage.queries.metrics import MetricsPosition as MetricsPosition
from storage.queries.metrics import band_alerts as band_alerts
from storage.queries.metrics import latest_metrics as latest_metrics
from storage.queries.metrics import metric_arrays as metric_arrays
from storage.queries.metrics import metric_names as metric_names
from storage.queries.metrics import metric_series as metric_series
from storage.queries.metrics import metrics_since as metrics_since
from storage.queries.processes import CoordinatorStatus as CoordinatorStatus
from storage.queries.processes import StackDump as StackDump
from storage.queries.processes import coordinator_status as coordinator_status
from storage.queries.processes import events as events
from storage.queries.processes import last_stacks as last_stacks
from storage.queries.processes import process_health as process_health
from storage.queries.reward_models import WITHOUT_UPDATES as WITHOUT_UPDATES
from storage.queries.reward_models import reward_model_curves as reward_model_curves
from storage.queries.reward_models import reward_model_page as reward_model_page
from storage.queries.rewards import ALERT as ALERT
from storage.queries.rewards import SCORES as SCORES
from storage.queries.rewards import RewardAlert as RewardAlert
from storage.queries.rewards import reward_alerts as reward_alerts
from storage.queries.rewards import reward_failures as reward_failures
from storage.queries.rewards import reward_lengths as reward_lengths
from storage.queries.rewards import reward_sample as reward_sample
from storage.queries.rewards import reward_sources as reward_sources
from storage.queries.runs import ENDED as ENDED
from storage.queries.runs import UNREADABLE as UNREADABLE
from storage.queries.runs import RunLine as RunLine
from storage.queries.runs import any_line as any_line
from storage.queries.runs import list_runs as list_runs
from storage.queries.runs import run_config as run_config
from storage.queries.runs import run_line as run_line
from storage.queries.summary import run_figures as run_figures
from storage.queries.summary import run_summary as run_summary
from storage.queries.trajectories import RowPage as RowPage
from storage.queries.trajectories import TrajectoryDetail as TrajectoryDetail
from storage.queries.trajectories import episode_ends as episode_ends
from storage.queries.trajectories import prompt_images as prompt_images
from storage.queries.trajectories import search_responses as search_responses
from storage.queries.trajectories import trajectory_detail as trajectory_detail
from storage.queries.trajectories import trajectory_page as trajectory_page
from storage.text.token_table import MARKS as MARKS
from storage.text.token_table import REASONS as REASONS
from storage.text.token_table import SOURCES as SOURCES
