#!/usr/bin/env bash
# The refit verifier on the tiny model at tensor-parallel size 2, with two engines and with one that is cut too: every
# tensor of every sync equal, log-probabilities too.
# PYTHON names the interpreter (default: uv's); arguments are overrides.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
OUT="${OUTPUT_DIR:-$REPO/tests/functional/output}/verify_refit"
read -ra RUN <<<"${PYTHON:-uv run --project $REPO --no-sync python}"
export PYTHONPATH="$REPO${PYTHONPATH:+:$PYTHONPATH}"
rm -rf "$OUT"
mkdir -p "$OUT"

for engine in 1 2; do
    "${RUN[@]}" "$REPO/tools/verify_refit.py" --config "$REPO/examples/configs/grpo_tiny_cpu.yaml" --syncs 5 \
        --json "$OUT/refit.json" cluster.gpus_per_node=2 policy.megatron_cfg.tensor_model_parallel_size=2 \
        "policy.generation.vllm_cfg.tensor_parallel_size=$engine" "$@"
    "${RUN[@]}" - "$OUT/refit.json" <<'CHECK'
import json, os, sys
result = json.load(open(sys.argv[1]))
assert len(result["syncs"]) == 5 and result["base_unchanged"], result
assert all(sync["refit/verify_seconds"] > 0 and sync["refit/weights_moved"] > 0.9 for sync in result["syncs"]), result
bound = float(os.environ.get("MEAN_LOGPROB_ERROR", "1e-5"))
assert result["agreement"]["mean_abs_logprob_error"] < bound, result["agreement"]
CHECK
done
