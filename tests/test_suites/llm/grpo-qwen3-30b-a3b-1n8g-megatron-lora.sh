#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=8
STEPS_PER_RUN=10
MAX_STEPS=10
NUM_MINUTES=60
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'mean(data["train/gen_kl_error"]) < 0.02' \
    'max(data["train/reward"]) > 0.5' \
    'mean(data["timing/train/total_step_time"], -6, 0) < 150'
