"""`python -m headrace`: the command line, which stands in `headrace_cli`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("headrace_cli.cli", run_name="__main__", alter_sys=True)
