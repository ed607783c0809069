#!/usr/bin/env bash
# A random tiny model learns the form of the answers by SFT, its adapter goes through the converter, and GRPO goes on from
# there: validation accuracy of base, SFT and GRPO must rise in this order.
# PYTHON names the interpreter (default: uv's); arguments are overrides of both.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
OUT="${OUTPUT_DIR:-$REPO/tests/functional/output}/sft_then_grpo"
read -ra RUN <<<"${PYTHON:-uv run --project $REPO --no-sync python}"
export PYTHONPATH="$REPO${PYTHONPATH:+:$PYTHONPATH}"
rm -rf "$OUT"
mkdir -p "$OUT"
cd "$OUT"

"${RUN[@]}" "$REPO/examples/run_sft.py" sft.max_num_steps=8 logger.log_dir=sft checkpointing.checkpoint_dir=checkpoints "$@"
"${RUN[@]}" "$REPO/examples/converters/checkpoint_to_peft.py" checkpoints/step_8 adapter
grpo() {
    "${RUN[@]}" "$REPO/examples/run_grpo.py" policy.model_name=tiny-random-qwen3 grpo.val_period=10 \
        logger.tensorboard_enabled=true "$@"
}
grpo grpo.max_num_steps=1 logger.log_dir=base "$@"
grpo grpo.max_num_steps=30 policy.megatron_cfg.optimizer.lr=1e-3 logger.log_dir=grpo checkpointing.adapter_path=adapter checkpointing.reference=start "$@"
for run in base grpo; do
    "${RUN[@]}" "$REPO/tests/json_dump_tb_logs.py" "$run" --output_path "$run.json"
done
"${RUN[@]}" "$REPO/tests/check_metrics.py" base.json 'data["validation/accuracy"]["0"] < 0.1'
"${RUN[@]}" "$REPO/tests/check_metrics.py" grpo.json \
    'data["validation/accuracy"]["0"] > 0.15' \
    'data["validation/accuracy"]["30"] > data["validation/accuracy"]["0"] + 0.1' \
    'max(data["train/max_abs_logprob_error"]) < '"${MAX_LOGPROB_ERROR:-1e-3}"
