#!/usr/bin/env bash
# BEGIN CONFIG
NUM_NODES=1
GPUS_PER_NODE=0
STEPS_PER_RUN=20
MAX_STEPS=40
NUM_MINUTES=60
# END CONFIG
source "$(dirname "$0")/common.env"

train "$@"

check \
    'data["validation/val_loss"]["40"] < data["validation/val_loss"]["0"]' \
    'mean(data["train/loss"], -5, 0) < mean(data["train/loss"], 1, 6)'
