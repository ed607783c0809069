#!/usr/bin/env bash
# LoRA GRPO, policy and engine on the same devices in turn; saves at the end, goes on from there, and learns.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STEPS=10
train "$REPO/examples/configs/grpo_tiny_cpu.yaml" grpo.max_num_steps=6 checkpointing.enabled=true checkpointing.save_period=6 "$@"
train "$REPO/examples/configs/grpo_tiny_cpu.yaml" grpo.max_num_steps=$STEPS checkpointing.enabled=true checkpointing.save_period=6 "$@"
grep -q "resumed from .*step_6 at step 6" train.log
check $STEPS \
    'max(data["train/reward"]) > 0.5' \
    'max(data["train/gen_kl_error"]) < 0.001' \
    'max(data["train/token_mult_prob_error"]) < 1.05' \
    'min(data["train/grad_norm"]) > 0' \
    "data[\"validation/accuracy\"][\"$STEPS\"] > 0.5"
