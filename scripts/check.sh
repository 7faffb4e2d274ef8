#!/usr/bin/env bash
# Lint, import fences, documentation, tests, in this order, and types beside them; stops at the first that fails
# and prints what each took. Arguments go to pytest. The environment must stand (make setup).
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 STREAMLIT_BROWSER_GATHER_USAGE_STATS=false

step() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    echo "== $name: passed in $((SECONDS - started)) s"
  else
    local status=$?
    echo "== $name: FAILED (exit $status) after $((SECONDS - started)) s" >&2
    exit "$status"
  fi
}

bin=.venv/bin

# A file stays whole: what its tests share is made once. Their order ends with files that are short.
# Real processes may miss their time where other tests take the cores: what failed runs again, alone.
tests() {
  local status=0
  "$bin/pytest" -q -rs --durations=40 -n 3 --dist loadfile --no-loadscope-reorder "$@" || status=$?
  if ((status == 1)); then
    echo "== tests: what failed, again and alone"
    "$bin/pytest" -q -rs --last-failed --last-failed-no-failures none || return
    echo "== tests: the failures above passed alone; such a test needs a mend, too"
  else
    return "$status"
  fi
}

step "what the tests need beyond pip" "$bin/python" -m tests.services
step "ruff check" "$bin/ruff" check .
step "ruff format" "$bin/ruff" format --check .
step "import fences" "$bin/lint-imports" --no-logo
step "documentation" "$bin/python" scripts/docs.py
step "types" "$bin/mypy" & types=$!
trap 'wait "$types"' EXIT  # a failed test leaves nothing running
step "tests" tests "$@"
wait "$types"
