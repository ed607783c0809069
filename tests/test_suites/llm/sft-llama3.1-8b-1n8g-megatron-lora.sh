#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=8
STEPS_PER_RUN=50
MAX_STEPS=50
NUM_MINUTES=45
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'data["train/loss"]["1"] < 1.0' \
    'data["train/loss"]["50"] < 0.8' \
    'mean(data["timing/train/total_step_time"], range_start=2) < 30'
