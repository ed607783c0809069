#!/usr/bin/env bash
# LoRA GRPO, policy and engine on devices of their own, weights over a process group.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STEPS=10
train "$REPO/examples/configs/grpo_tiny_cpu_non_colocated.yaml" grpo.max_num_steps=$STEPS checkpointing.enabled=false \
    weight_sync.verify_every=3 "$@"
check $STEPS \
    'max(data["train/reward"]) > 0.5' \
    'max(data["train/gen_kl_error"]) < 0.001' \
    'min(data["refit/bytes"]) > 0'
