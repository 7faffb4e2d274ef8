"""Exports: what a run holds as files.

`job.export` is the way in. Each kind of rows is a module that makes batches of one schema
(`trajectories`, `tokens`, `metrics`, `query_rows`, `training_answers`); `pages` reads trajectories
for them, `chats` their prompts. `leading_rows` decides which rows come first, `packed_rows` keeps
rows until that is known, `writers` and `text` make files of them.
"""

from storage.exports.job import ExportProgress, ExportSummary, export

__all__ = ["ExportProgress", "ExportSummary", "export"]
