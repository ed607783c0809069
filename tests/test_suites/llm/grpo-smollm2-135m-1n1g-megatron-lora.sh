#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=1
STEPS_PER_RUN=60
MAX_STEPS=120
NUM_MINUTES=30
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'max(data["train/gen_kl_error"]) < 0.001' \
    'mean(data["train/reward"], -10, 0) > 0.6' \
    'mean(data["timing/train/total_step_time"], range_start=2) < 5'
