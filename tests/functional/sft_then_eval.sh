#!/usr/bin/env bash
# SFT of the tiny model, stopped and resumed; then its checkpoint is evaluated through the engine with merged weights.
# PYTHON names the interpreter (default: uv's); arguments are overrides of both.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
OUT="${OUTPUT_DIR:-$REPO/tests/functional/output}/sft_then_eval"
read -ra RUN <<<"${PYTHON:-uv run --project $REPO --no-sync python}"
export PYTHONPATH="$REPO${PYTHONPATH:+:$PYTHONPATH}"
rm -rf "$OUT"
mkdir -p "$OUT"
cd "$OUT"

for steps in 30 60; do
    "${RUN[@]}" "$REPO/examples/run_sft.py" "sft.max_num_steps=$steps" logger.log_dir=logs logger.tensorboard_enabled=true \
        checkpointing.checkpoint_dir=checkpoints "$@"
done
"${RUN[@]}" "$REPO/tests/json_dump_tb_logs.py" logs --output_path metrics.json
"${RUN[@]}" "$REPO/tests/check_metrics.py" metrics.json \
    'len(data["train/loss"]) == 60' \
    'data["train/loss"]["60"] < 0.2' \
    'data["validation/val_loss"]["60"] < 0.2'

"${RUN[@]}" "$REPO/examples/run_eval.py" eval.checkpoint=checkpoints/step_60 eval.save_path=eval \
    policy.max_total_sequence_length=64 policy.generation.max_new_tokens=4 policy.generation.val_temperature=0 \
    policy.generation.vllm_cfg.enforce_eager=true policy.generation.vllm_cfg.kv_cache_gb_cpu=0.25 \
    policy.generation.vllm_cfg.gpu_memory_utilization=0.1 \
    data.dataset_name=tiny_max data.size=128 data.seed=7 data.prompt_file=null cluster.accelerator=cpu "$@"
"${RUN[@]}" -c 'import json; accuracy = json.load(open("eval/metrics.json"))["accuracy"]; assert accuracy > 0.7, accuracy'
