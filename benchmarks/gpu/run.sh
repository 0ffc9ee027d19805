#!/usr/bin/env bash
# Proves on a machine with an NVIDIA GPU, and without a network, what waits for one, in the order of its value;
# RESULTS.md is filled in from what came out.
#
#   benchmarks/gpu/run.sh [STEP …]         all steps, or those named
#   benchmarks/gpu/run.sh --dry-run        each step at toy size on the CPU, and what its inputs lack
#   benchmarks/gpu/run.sh --list           the steps, and the minutes that each is given
#
# A step that has ended well is not run again (rm OUT/STEP.done does away with that); one that was interrupted
# goes on where its script can. A step whose data or tools are missing waits, with the reason, and is taken when it is
# run again with them. A step that fails does not keep the others from running, and is named at the end. What a step
# prints goes to the terminal and to OUT/STEP.log, its minutes to OUT/steps.csv.
#
#   PARTS     folder of the wheels in parts (wheels.py pack); without it nothing is unpacked or installed
#   OUT       where results are written (results/ of this folder; of a dry run build/gpu_dry_run)
#   PYTHON    the interpreter with sparse-serve installed (.venv/bin/python; with PARTS that of a new OUT/venv)
#   TIMED     seconds that each variant or batch is timed (1)
#   WORKERS   processes in which the answers of float64 are computed (8)
#   CHECKPOINT, ROWS                       of entries: a trained classifier of single texts, and texts for it
#   DATA, ENCODER, ENCODER_CASED           of the paper-size runs: see their scripts
set -uo pipefail
cd "$(dirname "$0")/../.."
here=benchmarks/gpu

# Name and minutes of each step, in the order in which they are worth most. Those of the paper-size runs are
# estimates for an H200 from their steps; DATA and weights must be on the machine.
steps=(
    "unpack 3" "build 4" "correctness 8" "entries 3" "sanitizer 30" "op_speed 12" "model_speed 12" "profiles 8"
    "ssaf_bert_base_np 240" "ssaf_bert_base 240" "aaa_bert_base 480" "pal_bert_base 300"
)

# What a step ends with that waits, having said for what.
waiting=75
waits() { # REASON
    echo "waits: $1"
    return $waiting
}

dry_run=false
chosen=()
for argument in "$@"; do
    case $argument in
        --dry-run) dry_run=true ;;
        --list) printf '%s\n' "${steps[@]}"; exit ;;
        -*) echo "error: $argument is not known: give --dry-run, --list or steps" >&2; exit 2 ;;
        *) chosen+=("$argument") ;;
    esac
done
for name in "${chosen[@]}"; do
    [[ " ${steps[*]} " == *" $name "* ]] || { echo "error: there is no step $name: see --list" >&2; exit 2; }
done

if $dry_run; then
    OUT=${OUT:-build/gpu_dry_run} device=cpu size=(--toy) timed=() workers=1
else
    OUT=${OUT:-$here/results} device=cuda size=() timed=(--seconds "${TIMED:-1}") workers=${WORKERS:-8}
fi
mkdir -p "$OUT"
exec 9>"$OUT/lock"
flock --nonblock 9 || { echo "error: another run.sh is at work in $OUT: two at once would time each other" >&2; exit 1; }
[[ -z ${PARTS:-} ]] || $dry_run || PYTHON=${PYTHON:-$OUT/venv/bin/python}
export OUT PYTHON=${PYTHON:-.venv/bin/python}

if ! $dry_run; then
    command -v nvidia-smi >/dev/null \
        && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv | tee "$OUT/gpu.csv" \
        || { echo "error: no NVIDIA GPU on this machine (nvidia-smi was not found, or does not answer)" >&2; exit 1; }
fi

unpack() {
    if $dry_run; then # a wheel that is none goes all the way
        local work=$OUT/unpack wheel=toy-1-py3-none-any.whl
        rm -rf "$work" && mkdir -p "$work/wheels" && head -c 5000 /dev/zero >"$work/wheels/$wheel"
        python3 $here/wheels.py pack "$work/parts" --wheels "$work/wheels" --part-bytes 2048 \
            && python3 $here/wheels.py unpack "$work/parts" "$work/joined" \
            && cmp "$work/wheels/$wheel" "$work/joined/$wheel"
        return
    fi
    [[ -n ${PARTS:-} ]] || { echo "PARTS is not set: what is installed is used"; return 0; }
    python3 $here/wheels.py unpack "$PARTS" "$OUT/wheels" && python3 -m venv "$OUT/venv" \
        && "$PYTHON" -m pip install --quiet --no-index --find-links "$OUT/wheels" --requirement $here/requirements.txt
}

build() {
    if $dry_run; then
        "$PYTHON" -c 'from sparse_serve.info import read_info; print(read_info()["cuda"])' || return 1
        make --dry-run cuda >/dev/null 2>&1 || waits "this clone has no make cuda"
        return
    fi
    local options=() nvcc
    nvcc=$(command -v nvcc || ls "$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"/nvidia/cu*/bin/nvcc | head -1)
    # Without a network what builds is installed already; else pip brings it.
    [[ -z ${PARTS:-} ]] || options=(--no-build-isolation --no-index --find-links "$OUT/wheels")
    "$PYTHON" -m pip install --quiet --no-deps "${options[@]}" \
        --config-settings=cmake.define.SPARSE_OPS_CUDA=ON \
        --config-settings=cmake.define.SPARSE_OPS_NVCC="$nvcc" --editable . \
        && "$PYTHON" -c 'from sparse_serve.cuda import require_runtime; from sparse_serve.op_library import verify_library
require_runtime("the benchmark"); print(verify_library("cuda"))'
}

# With as many processes as are asked for, and no more threads than those.
correctness() {
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$PYTHON" $here/correctness.py --device $device "${size[@]}" \
        --workers "$workers" --output "$OUT/correctness.csv"
}

entries() {
    local asked=()
    if ! $dry_run; then
        [[ -n ${CHECKPOINT:-} && -n ${ROWS:-} ]] \
            || { waits "CHECKPOINT and ROWS are not set: give a trained classifier and a file of texts"; return; }
        asked=(--checkpoint "$CHECKPOINT" --rows "$ROWS")
    fi
    "$PYTHON" $here/entries.py --device $device "${size[@]}" "${asked[@]}" --work "$OUT/entries" \
        --output "$OUT/entries.csv"
}

sanitizer() {
    local tool status=0
    if ! command -v compute-sanitizer >/dev/null; then
        waits "compute-sanitizer is not on PATH (it comes with the CUDA toolkit)"
        return
    fi
    for tool in memcheck racecheck initcheck synccheck; do
        echo "-- $tool"
        compute-sanitizer --tool $tool --error-exitcode 9 --log-file "$OUT/sanitizer_$tool.log" \
            "$PYTHON" $here/correctness.py --device $device --short "${size[@]}" --output "$OUT/sanitizer_$tool.csv" \
            || status=1
    done
    return $status
}

op_speed() {
    "$PYTHON" $here/op_speed.py --device $device "${size[@]}" "${timed[@]}" --output "$OUT/op_speed.csv"
}

model_speed() {
    local kinds=() kind
    for kind in ${MODELS:-}; do kinds+=(--kind "$kind"); done
    "$PYTHON" $here/model_speed.py --device $device "${size[@]}" "${timed[@]}" "${kinds[@]}" --work "$OUT/models" \
        --output "$OUT/model_speed.csv"
}

# The fourth call of each kernel at each length: the first loads its code. A call of SparsegenAttention launches a
# kernel for each number of keys that a sequence may have, one of AxisAttention plans before.
profiles() {
    if ! command -v ncu >/dev/null; then
        waits "ncu is not on PATH (it comes with the CUDA toolkit); its counters may need rights"
        return
    fi
    local op length launches lengths=(512 4096)
    ! $dry_run || lengths=(16 32)
    for op in SparsegenAttention AxisAttention SoftmaxAttention; do
        launches=3
        [[ $op != SoftmaxAttention ]] || launches=1
        for length in "${lengths[@]}"; do
            ncu --set full --import-source yes --clock-control none \
                --kernel-name "regex:^(${op}|PlanBorders|PlanSequences)Kernel$" \
                --launch-skip $((3 * launches)) --launch-count $launches \
                --force-overwrite --export "$OUT/${op}_$length" \
                "$PYTHON" $here/op_speed.py --device $device "${size[@]}" --only $op --length "$length" \
                --dtype bfloat16 --output "$OUT/profile_${op}_$length.csv" || return 1
        done
    done
}

# What a script wants: it names its folders, and what is in them, where it refuses to run without.
lacks() { # STEP
    local name message part status=0
    while IFS=$'\t' read -r name message; do
        if [[ -z ${!name:-} ]]; then
            waits "$name is not set: give the $message" || status=$?
            continue
        fi
        local wanted=config.json
        [[ $name != DATA ]] || wanted=$(grep -o '[a-z0-9_]*/' <<<"$message")
        for part in $wanted; do
            [[ $part != */ || -z ${SETS:-} || " $SETS " == *" ${part%/} "* ]] || continue
            [[ $part != */ ]] || part+=train.tsv
            [[ -e ${!name}/$part ]] || waits "$name ${!name} has no $part" || status=$?
        done
    done < <(sed -n 's/^: //p' "$here/$1.sh" | grep -o '{[A-Z_]*:?[^}]*' | sed 's/^{\([A-Z_]*\):?/\1\t/')
    return $status
}

quality() { # STEP
    if $dry_run; then
        bash -n "$here/$1.sh" \
            && "$PYTHON" -m py_compile $(grep -o 'benchmarks/[a-z_/]*\.py' "$here/$1.sh" | sort -u) && lacks "$1"
        return
    fi
    lacks "$1" && bash "$here/$1.sh"
}

run() { # STEP
    case $1 in
        *_bert_base*) quality "$1" ;;
        *) "$1" ;;
    esac
}

[[ -e $OUT/steps.csv ]] || echo step,ended,minutes,result >"$OUT/steps.csv"
failed=()
for step in "${steps[@]}"; do
    read -r name minutes <<<"$step"
    ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" $name "* ]] || continue
    if [[ -e $OUT/$name.done ]] && ! $dry_run; then
        echo "== $name has been done"
        continue
    fi
    echo "== $name, about $minutes minutes"
    begun=$SECONDS
    run "$name" 2>&1 | tee "$OUT/$name.log"
    case ${PIPESTATUS[0]} in
        0) result="ended well" && touch "$OUT/$name.done" ;;
        "$waiting") result="waits: $(sed -n 's/^waits: //p' "$OUT/$name.log" | paste -sd '\t' | sed 's/\t/; /g; s/"//g')" ;;
        *) result="failed" && failed+=("$name") ;;
    esac
    ended=$(date -u +%Y-%m-%dT%H:%MZ)
    echo "$name,$ended,$(((SECONDS - begun + 30) / 60)),\"$result\"" >>"$OUT/steps.csv"
    # After each step, as the machine may be gone before the next.
    page=$here/RESULTS.md
    if $dry_run; then
        page=$OUT/RESULTS.md
        [[ -e $page ]] || cp $here/RESULTS.md "$page"
    fi
    "$PYTHON" $here/ledger.py "$OUT" --page "$page" || failed+=(ledger)
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" >&2; exit 1; }
