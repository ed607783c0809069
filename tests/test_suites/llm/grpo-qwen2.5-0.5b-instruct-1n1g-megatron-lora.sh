#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=1
STEPS_PER_RUN=30
MAX_STEPS=60
NUM_MINUTES=60
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'mean(data["train/gen_kl_error"]) < 0.002' \
    'median(data["train/token_mult_prob_error"]) < 1.05' \
    'mean(data["train/reward"], -10, 0) > 0.4' \
    'mean(data["timing/train/total_step_time"], range_start=2) < 30'
