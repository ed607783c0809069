#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=0
STEPS_PER_RUN=10
MAX_STEPS=20
NUM_MINUTES=60
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'max(data["train/gen_kl_error"]) < 1e-6' \
    'max(data["train/max_abs_logprob_error"]) < 1e-3' \
    'mean(data["train/reward"], -5, 0) > mean(data["train/reward"], 1, 6)'
