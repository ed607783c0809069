#!/usr/bin/env bash
# Asynchronous LoRA GRPO whose engine is killed in the middle (KILLS times): it is replaced, and no group is lost.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STEPS=${STEPS:-12}
KILLS=${KILLS:-1}
"${PYTHON_COMMAND[@]}" "$REPO/tests/functional/kill_workers.py" "$OUT/logs" --kills "$KILLS" > kills.log 2>&1 &
KILLER=$!
train "$REPO/examples/configs/grpo_tiny_cpu_async.yaml" grpo.max_num_steps=$STEPS checkpointing.enabled=false "$@"
wait $KILLER || { cat kills.log >&2; echo "$NAME: the engine was not killed $KILLS times" >&2; exit 1; }
check $STEPS "data[\"train/reissued_requests\"][\"$STEPS\"] >= 0" 'max(data["train/avg_trajectory_age"]) <= 1'
[ "$(grep -c 'starting engine replica' train.log)" -ge 1 ]
"${PYTHON_COMMAND[@]}" "$REPO/tests/functional/account_groups.py" "$OUT/logs"
