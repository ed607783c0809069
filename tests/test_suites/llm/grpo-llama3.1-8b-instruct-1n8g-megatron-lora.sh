#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=8
STEPS_PER_RUN=20
MAX_STEPS=20
NUM_MINUTES=60
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'mean(data["train/gen_kl_error"]) < 0.002' \
    'max(data["train/reward"]) > 0.5' \
    'mean(data["timing/train/total_step_time"], range_start=2) < 80'
