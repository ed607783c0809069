#!/usr/bin/env bash
# Asynchronous LoRA GRPO whose collector, then in another run whose policy rank, is killed: the run ends at once, with a
# message that says who died, an exit code that is not 0, and no process left. (Without them nothing can go on.)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for who in collector policy; do
    logs="$OUT/$who"
    "${PYTHON_COMMAND[@]}" "$REPO/tests/functional/kill_workers.py" "$logs" --who $who > kills.log 2>&1 &
    killer=$!
    if "${PYTHON_COMMAND[@]}" "$REPO/examples/run_grpo.py" \
        --config "${CONFIG:-$REPO/examples/configs/grpo_tiny_cpu_async.yaml}" \
        logger.log_dir="$logs" checkpointing.enabled=false grpo.max_num_steps=1000 "$@" > $who.log 2>&1; then
        echo "$NAME: the run ended well without its $who" >&2
        exit 1
    fi
    wait $killer || { cat kills.log >&2; exit 1; }
    message=$(tail -n 1 $who.log)
    echo "$who: $message"
    grep -q "$who.*a worker process ended" <<< "$message"
    [ -n "$(ls "$logs"/exp_001/worker_logs)" ]
    if pgrep -f "logger.log_dir=$logs" > /dev/null; then echo "$NAME: processes are left" >&2; exit 1; fi
done
