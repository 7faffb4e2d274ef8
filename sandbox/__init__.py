"""A sandbox for programs that nobody has read: model-written code and its tests.

In: a `Program` (source, standard input, checks). Out: a `ProgramResult`. A program runs in a cell,
which the kernel isolates (`isolation_check.py` says with what), which is made before it is needed,
holds one program and is then thrown away.

Reading order, outside: `limits.py`, `pool.py` (the interface), `cell.py`, `isolation_check.py`,
`escape_tests/` (what every layer has to hold). Inside, standard library only: `isolation/`
(`cell_factory.py`, `init_process.py`, `namespaces.py`, `landlock.py`, `privileges.py`,
`syscall_filter.py`, `kernel.py`); then the two processes of a cell, `program_process.py` and
`checker.py`, which speak by `channel.py` and `plain_data.py`.
"""
