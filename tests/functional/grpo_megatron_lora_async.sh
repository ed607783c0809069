#!/usr/bin/env bash
# LoRA GRPO, generation and training at the same time; stops, goes on from the checkpoint, trains on no group twice.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STEPS=16
train "$REPO/examples/configs/grpo_tiny_cpu_async.yaml" grpo.max_num_steps=8 checkpointing.enabled=true checkpointing.save_period=8 "$@"
train "$REPO/examples/configs/grpo_tiny_cpu_async.yaml" grpo.max_num_steps=$STEPS checkpointing.enabled=true checkpointing.save_period=8 "$@"
grep -q "resumed from .*step_8 at step 8" train.log
check $STEPS \
    'max(data["train/reward"]) > 0.5' \
    'data["train/gen_kl_error"]["1"] < 0.001' \
    'max(data["train/avg_trajectory_age"]) <= 1' \
    'mean(data["train/avg_trajectory_age"]) > 0' \
    'median(data["train/sampling_importance_ratio"]) > 0.5' \
    "data[\"validation/accuracy\"][\"$STEPS\"] > 0.5"
"${PYTHON_COMMAND[@]}" "$REPO/tests/functional/account_groups.py" "$OUT/logs"
