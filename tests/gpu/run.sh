#!/bin/bash
# Everything that needs real GPUs, in one command: unit tests, then whole runs through a real Slurm.
#
#   tests/gpu/run.sh [BUNDLE] [PREFIX] [PART...]
#
# Run it as root on a machine with NVIDIA GPUs; it needs no package index. BUNDLE (default
# .cache/gpu-bundle) is what bundle.sh made elsewhere. PREFIX is a new folder, by default in /tmp. Each
# PART is unit, digits or synthetic; by default all of them run, in a quarter of an hour. LAST_SECOND
# says after how many seconds to stop (default 1800). Full logs go to OUT (default PREFIX/out).
# Exit codes: 0 all is well; 1 something is not; 75 there is no GPU here.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
bundle=${1:-.cache/gpu-bundle}
if ! nvidia-smi -L 2> /dev/null; then
  echo "run.sh: no NVIDIA GPU here; nothing was tested" >&2
  exit 75
fi

prefix=${2:-$(mktemp -d /tmp/gpu.XXXX)}
parts=" ${*:3} "
[ "${#parts}" -gt 2 ] || parts=" unit digits synthetic "
out=${OUT:-$prefix/out}
mkdir -p "$out"
failed=()
# A step that is not done by then fails, so that its log can still be saved.
last_second=${LAST_SECOND:-1800}

# Run a named step with a limit in seconds. All output goes to a log, whose end is shown on failure.
step() {
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  if ((limit > last_second - SECONDS)); then limit=$((last_second - SECONDS)); fi
  if ((limit < 1)); then limit=1; fi
  timeout --signal=INT --kill-after=20 "$limit" "$@" > "$out/$name.log" 2>&1
  code=$?
  echo "== $name: exit $code, $((SECONDS - began)) s; $(tail -n 1 "$out/$name.log")"
  [ "$code" = 0 ] && return
  failed+=("$name")
  tail -n 40 "$out/$name.log"
  return "$code"
}

# Write the shipped profile for Slurm, changed so that pool and mpi take all GPUs of this machine.
adapt_profile() {
  local devices
  devices=$(nvidia-smi -L | wc -l)
  sed -e "/^  pool:/,/^  mpi:/ s/gres: \"gpu:1\"/gres: \"gpu:$devices\"/" \
    -e "/^  mpi:/,/^  reduce:/ s/^    \(gpu\|tasks\): 2\b/    \1: $devices/" \
    profiles/slurm/config.yaml > "$1/config.yaml"
}

# Run the whole workflow, and check what must be true of its results.
whole_run() {
  local name=$1 limit=$2 config=$3
  # Look at new jobs early: the pause of the profile is for busy clusters.
  # Compute everything again: what an earlier run left proves nothing about this one.
  step "$name" "$limit" python3 -m snakemake --profile "$out/profile" --jobs 100 --forceall \
    --slurm-init-seconds-before-status-checks 2 --configfile "$config" || return
  step "$name-verify" 60 python3 scripts/verify.py "results/$name"
}

# Compute the digits under each of the four dispatches. Each sum must be exact, so all are the same.
digits() {
  step digits-input 60 env PYTHONPATH="scripts:$PYTHONPATH" \
    python3 examples/digits/make_input.py || return
  digits_by jobs 7
  digits_by array 16
  # So many shards that some are left for a worker that starts a bit later than the others.
  digits_by pool 150
  # Snakemake's Slurm plugin refuses an MPI job of one task, so mpi cannot run on one GPU.
  if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then digits_by mpi 150; fi
}

digits_by() {
  local name=digits-$1
  printf '%s\n' "input: examples/digits/input.npy" "results: results/$name" "dispatch: $1" \
    "shards: $2" "backend: cupy" > "$out/$name.yaml"
  whole_run "$name" 150 "$out/$name.yaml" || return
  step "$name-exact" 60 python3 - "results/$name/sum.npy" <<'PYTHON'
import sys
import numpy as np
digits = np.load("examples/digits/input.npy")
np.testing.assert_array_equal(np.load(sys.argv[1]), (digits @ digits).sum(axis=0))
PYTHON
}

finish() {
  scontrol shutdown > /dev/null 2>&1
  # Put what may explain a failure into one file: logs, receipts and tables, but no matrices.
  find results "$prefix/run" -type f \( -name '*.log' -o -name '*.json' -o -name '*.tsv' \) -print0 |
    tar --null -czf "$out/results.tar.gz" -T - 2> /dev/null
}

trap finish EXIT
step up 60 tests/gpu/up.sh "$bundle" "$prefix"
# shellcheck source=/dev/null
. "$prefix/env" || exit 1
nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u | sed 's/^/driver /'
python3 - <<'PYTHON'
import platform, sys
import cupy, numpy, snakemake
sys.stdout.write(
    f"python {platform.python_version()}, numpy {numpy.__version__}, cupy {cupy.__version__}, "
    f"CUDA {cupy.cuda.runtime.runtimeGetVersion()}, snakemake {snakemake.__version__}\n"
)
PYTHON
mkdir -p "$out/profile"
adapt_profile "$out/profile"
if [[ $parts = *" unit "* ]]; then
  # Versions other than the pinned ones may warn, which is not an error. Load no other pytest plugins.
  step doctor 100 python3 scripts/doctor.py
  PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 step unit 600 python3 -m pytest -p pytest_timeout -W default \
    --durations=5 tests/gpu
fi
if scontrol ping > /dev/null 2>&1; then
  if [[ $parts = *" digits "* ]]; then digits; fi
  if [[ $parts = *" synthetic "* ]]; then
    whole_run synthetic-4096 240 tests/gpu/synthetic-4096.yaml
  fi
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]} (logs: $out)" >&2
  exit 1
fi
echo "all passed in $SECONDS s"
