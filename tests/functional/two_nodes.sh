#!/usr/bin/env bash
# Two Ray nodes on this machine, each in a network namespace of its own (needs root): the policy on one, the engine on
# the other, weights and rollouts over the link between them. Then the link is cut while weights travel: the run must
# end with a message that names the lost node, and a run with the link up again must go on from the checkpoint.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STEPS=6
A=nrl-a B=nrl-b IP_A=10.77.0.1 IP_B=10.77.0.2
RAY="$(dirname "$("${PYTHON_COMMAND[@]}" -c 'import sys; print(sys.executable)')")/ray"
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
# Ray looks every 3 s whether a node is there; five misses are enough.
export RAY_health_check_period_ms=1000 RAY_health_check_failure_threshold=5 RAY_health_check_initial_delay_ms=1000

down() {
    for namespace in $A $B; do
        # only processes inside the namespaces that this script made
        for pid in $(ip netns pids $namespace 2> /dev/null); do kill -9 "$pid" 2> /dev/null || true; done
        ip netns del $namespace 2> /dev/null || true
    done
    rm -rf "$OUT/ray"
}

up() {
    down
    ip netns add $A
    ip netns add $B
    ip link add $A-link netns $A type veth peer name $B-link netns $B
    ip -n $A addr add $IP_A/24 dev $A-link
    ip -n $B addr add $IP_B/24 dev $B-link
    for namespace in $A $B; do
        ip -n $namespace link set lo up
        ip -n $namespace link set $namespace-link up
        ip -n $namespace route add default dev $namespace-link
    done
    local common=(--num-cpus 2 --num-gpus 0 --object-store-memory 200000000 --disable-usage-stats)
    ip netns exec $A "$RAY" start --head --node-ip-address $IP_A --port 6379 --include-dashboard false \
        --temp-dir "$SESSION" "${common[@]}" > ray_a.log 2>&1
    ip netns exec $B "$RAY" start --address $IP_A:6379 --node-ip-address $IP_B "${common[@]}" > ray_b.log 2>&1
}

distributed() {
    ip netns exec $A "${PYTHON_COMMAND[@]}" "$REPO/examples/run_grpo.py" --config "${CONFIG:-$REPO/examples/configs/grpo_tiny_cpu_async.yaml}" \
        logger.log_dir="$OUT/logs" logger.tensorboard_enabled=true checkpointing.checkpoint_dir="$OUT/checkpoints" \
        cluster.ray_address=$IP_A:6379 cluster.num_nodes=2 cluster.gpus_per_node=1 \
        policy.generation.colocated.resources.num_nodes=1 checkpointing.enabled=true checkpointing.save_period=2 weight_sync.deadline_s=30 \
        grpo.val_at_start=false grpo.val_at_end=false grpo.val_period=0 checkpointing.metric_name=null "$@"
}

SESSION="$(mktemp -d /tmp/nrl2-XXXX)"
trap 'down; rm -rf "$SESSION"' EXIT
up
distributed grpo.max_num_steps=1000 > train.log 2>&1 &
DRIVER=$!
for _ in $(seq 300); do
    [ -d "$OUT/checkpoints/step_4" ] && break
    kill -0 $DRIVER 2> /dev/null || { tail -n 30 train.log >&2; echo "$NAME: the run ended before step 4" >&2; exit 1; }
    sleep 1
done
# The next sync comes within a second or two; most of a step here is one.
ip -n $A link set $A-link down
START=$SECONDS
if wait $DRIVER; then echo "$NAME: the run ended well without its engine" >&2; exit 1; fi
echo "the run ended $((SECONDS - START)) s after the link was cut:"
tail -n 1 train.log
grep -q "$IP_B" <(tail -n 3 train.log) || { echo "$NAME: the message does not name the node" >&2; exit 1; }

up
DONE=$("${PYTHON_COMMAND[@]}" -c "import pathlib, re; print(max(int(p.name[5:]) for p in pathlib.Path('$OUT/checkpoints').glob('step_*')))")
STEPS=$((DONE + 3))
distributed grpo.max_num_steps=$STEPS > resume.log 2>&1 || { tail -n 30 resume.log >&2; exit 1; }
grep -q "at step $DONE" resume.log
check $STEPS 'max(data["train/avg_trajectory_age"]) <= 1'
"${PYTHON_COMMAND[@]}" "$REPO/tests/functional/account_groups.py" "$OUT/logs"
