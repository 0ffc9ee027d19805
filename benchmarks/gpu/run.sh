#!/usr/bin/env bash
# Runs the checks that need a GPU, one after another; RESULTS.md says which have run and what came out.
#
#   benchmarks/gpu/run.sh [CHECK …]        all checks, or those named
#
# A check is a script of this folder. What it prints goes to the terminal and to OUT/CHECK.log; a check that
# fails does not keep the others from running, and is named at the end. A check that was interrupted goes on
# where it stopped when it is started again.
#
#   OUT       where results are written (results/ of this folder)
#   PYTHON    the interpreter with sparse-serve installed (.venv/bin/python)
set -uo pipefail
cd "$(dirname "$0")/../.."
export OUT=${OUT:-benchmarks/gpu/results} PYTHON=${PYTHON:-.venv/bin/python}
mkdir -p "$OUT"

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv \
    || { echo "error: no NVIDIA GPU on this machine (nvidia-smi was not found)" >&2; exit 1; }
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
    || { echo "error: $PYTHON has a torch without CUDA, or none: install a CUDA build and sparse-serve" >&2; exit 1; }

checks=("$@")
(($#)) || checks=(ssaf_bert_base_np ssaf_bert_base aaa_bert_base pal_bert_base)
failed=()
for check in "${checks[@]}"; do
    echo "== $check"
    bash "benchmarks/gpu/$check.sh" 2>&1 | tee "$OUT/$check.log" || failed+=("$check")
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" >&2; exit 1; }
