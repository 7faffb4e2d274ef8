"""Headrace: asynchronous actor-learner reinforcement learning of language models.

This package has three layers, and imports go down only:

- commands (`cli.py`, `commands/`): what a user can ask for. A command may import a role, inside the
  function that needs it, so that `headrace --help` loads none.
- processes (`processes/`): what starts and watches the processes of a run. It imports no role: it
  starts them by their command lines.
- contract (`config/`, `protocol/` and the modules beside them): what every role shares. Roles
  import this layer alone.

Reading order: `config/run.py`, `protocol/messages.py`, `protocol/records.py`,
`processes/launch.py`, `processes/supervise.py`, `cli.py`.
"""

__version__ = "0.1.0"
