# Sourced by the scripts beside it: train through examples/run_grpo.py, then check metrics. Any failure ends the script.
#
# CONFIG=FILE takes another configuration, for instance one for GPUs; further arguments are overrides; PYTHON names the
# interpreter (default: uv's). Output goes to tests/functional/output/NAME.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
NAME="$(basename "$0" .sh)"
OUT="${OUTPUT_DIR:-$REPO/tests/functional/output}/$NAME"
read -ra PYTHON_COMMAND <<< "${PYTHON:-uv run --project $REPO --no-sync python}"
export PYTHONPATH="$REPO${PYTHONPATH:+:$PYTHONPATH}"

rm -rf "$OUT"
mkdir -p "$OUT"
cd "$OUT"

# train CONFIG override...: leaves train.log and TensorBoard files; fails when the run does
train() {
    local config="$1"
    shift
    "${PYTHON_COMMAND[@]}" "$REPO/examples/run_grpo.py" --config "${CONFIG:-$config}" \
        logger.log_dir="$OUT/logs" logger.tensorboard_enabled=true checkpointing.checkpoint_dir="$OUT/checkpoints" \
        "$@" >> train.log 2>&1 || { tail -n 40 train.log >&2; echo "$NAME: the run failed, see $OUT/train.log" >&2; exit 1; }
}

# check STEP expression...: STEP is the last one, without which the run did not get to its end
check() {
    local step="$1"
    shift
    "${PYTHON_COMMAND[@]}" "$REPO/tests/json_dump_tb_logs.py" "$OUT/logs" --output_path metrics.json
    "${PYTHON_COMMAND[@]}" "$REPO/tests/check_metrics.py" metrics.json \
        "len(data[\"train/loss\"]) == $step" "data[\"train/reward\"][\"$step\"] >= 0" "$@"
}
