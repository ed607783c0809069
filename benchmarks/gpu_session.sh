#!/usr/bin/env bash
# Everything that is measured on one GPU, job by job, each with a deadline of its own: what ends up in docs/guides/gpu.md.
#
#   bash benchmarks/gpu_session.sh OUT [JOB...]        all jobs, or those named; LIST=1 prints them
#
# OUT gets NAME.log, NAME.json, and for learning runs metrics, configuration and plot. PYTHON is the interpreter (default
# python3: workers run in it too); SMOLLM2 a folder of SmolLM2-135M-Instruct, GSM8K one with train.jsonl and test.jsonl.
# The first engine of a fresh host takes a minute longer than later ones: imports, compilation and graphs.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
SMOLLM2="${SMOLLM2:-HuggingFaceTB/SmolLM2-135M-Instruct}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
OUT="${1:?folder for the results}"
shift
WANTED=("$@")
MODELS="$(mktemp -d)"
FAILED=0
mkdir -p "$OUT"
OUT="$(cd "$OUT" && pwd)"

HERE=(cluster.worker_environment=driver logger.monitor_gpus=false checkpointing.enabled=false)
BASE=examples/configs/grpo_math_1B_megatron_lora.yaml
RECIPE=examples/configs/recipes/llm/grpo-smollm2-135m-1n1g-megatron-lora.yaml

job() { # NAME SECONDS COMMAND...; @SHAPE stands for a folder with random weights, made when it is first needed
    local name="$1" seconds="$2" command=() word shape start status
    shift 2
    [[ ${#WANTED[@]} -gt 0 && " ${WANTED[*]} " != *" $name "* ]] && return
    if [[ -n "${LIST:-}" ]]; then
        printf '%-12s %4d s  %s\n' "$name" "$seconds" "$*"
        return
    fi
    for word in "$@"; do
        if [[ "$word" == *@qwen* ]]; then
            shape="${word#*@}"
            [[ -d "$MODELS/$shape" ]] || $PYTHON benchmarks/random_checkpoint.py "$shape" "$MODELS/$shape" >"$OUT/$shape.log" 2>&1
            word="${word%@*}$MODELS/$shape"
        fi
        command+=("$word")
    done
    start=$SECONDS
    timeout --kill-after=10 "$seconds" "${command[@]}" >"$OUT/$name.log" 2>&1
    status=$?
    [[ $status -eq 0 ]] || FAILED=$((FAILED + 1))
    printf '%-12s exit %d after %d s\n' "$name" "$status" $((SECONDS - start))
    tail -n "${TAIL:-15}" "$OUT/$name.log"
}

step() { # NAME SECONDS SHAPE ARGUMENTS...
    local name="$1" seconds="$2" shape="$3"
    shift 3
    job "$name" "$seconds" $PYTHON benchmarks/grpo_step.py "@$shape" --on-policy --json "$OUT/$name.json" "$@"
}

refit() { # NAME SECONDS SHAPE SYNCS
    job "$1" "$2" $PYTHON tools/verify_refit.py --config "$BASE" --syncs "$4" --json "$OUT/$1.json" "${HERE[@]}" \
        "policy.model_name=@$3" policy.megatron_cfg.peft.dim=32 policy.max_total_sequence_length=512 \
        policy.generation.vllm_cfg.gpu_memory_utilization=0.5
}

learn() { # NAME SECONDS KEY=VALUE...
    local name="$1" seconds="$2"
    shift 2
    job "$name" "$seconds" $PYTHON examples/run_grpo.py --config "$RECIPE" "${HERE[@]}" "policy.model_name=$SMOLLM2" \
        policy.generation.vllm_cfg.gpu_memory_utilization=0.4 "logger.log_dir=$OUT/$name" "$@"
    rm -rf "$OUT/$name"/*/rollouts
}

FAST=(--memory 0.5 --micro-batch-tokens 65536 --logits-chunk 4096)
job gpu_tests 240 $PYTHON -m pytest -q -p no:cacheprovider tests/gpu
step step06 260 qwen3-0.6b --steps 6 "${FAST[@]}"
step step06_apart 150 qwen3-0.6b --steps 6 "${FAST[@]}" --core-apart
step step06_seeds 150 qwen3-0.6b --steps 6 "${FAST[@]}" --seed-per-sample
job rollout06 450 $PYTHON benchmarks/rollout.py @qwen3-0.6b --json "$OUT/rollout06.json"
refit refit06 200 qwen3-0.6b 50
job train06 150 $PYTHON benchmarks/train_step.py @qwen3-0.6b --variants 65536:4096 --profile "$OUT/train06.txt" --json "$OUT/train06.json"
job bridge06 200 $PYTHON benchmarks/bridge_loop.py @qwen3-0.6b --json "$OUT/bridge06.json"
job functional 900 env PYTHON="$PYTHON" OUTPUT_DIR="$OUT/functional" tests/L1_Functional_Tests_GPU.sh
learn learn_r32 400 grpo.max_num_steps=100
learn learn_bf16 400 grpo.max_num_steps=100 policy.precision=bfloat16
learn learn_r8 400 grpo.max_num_steps=100 policy.megatron_cfg.peft.dim=8 policy.megatron_cfg.peft.alpha=8
learn learn_full 400 grpo.max_num_steps=100 policy.megatron_cfg.peft.enabled=false \
    policy.megatron_cfg.optimizer.lr=2e-5 policy.megatron_cfg.optimizer.min_lr=2e-6 policy.megatron_cfg.scheduler.lr_warmup_init=2e-6
# A skill, not a constant answer: which of 2 to 4 people is asked for. Three steps of SFT teach to answer with a name only.
NEEDLE=(data.default.prompt_file=null)
for part in train validation; do
    NEEDLE+=("data.$part.dataset_name=reasoning_gym:needle_haystack" "~data.$part.task_params"
        "++data.$part.task_params.min_num_statements=2" "++data.$part.task_params.max_num_statements=4")
done
job needle_sft 150 $PYTHON examples/run_sft.py --config examples/configs/recipes/llm/sft-smollm2-135m-cpu-megatron-lora.yaml \
    "${HERE[@]}" checkpointing.enabled=true cluster.accelerator=cuda policy.precision=float16 "policy.model_name=$SMOLLM2" \
    data.train.dataset_name=reasoning_gym:needle_haystack ++data.train.task_params.min_num_statements=2 \
    ++data.train.task_params.max_num_statements=4 data.train.size=512 policy.max_total_sequence_length=192 \
    sft.max_num_steps=3 policy.megatron_cfg.scheduler.lr_warmup_iters=2 "logger.log_dir=$OUT/needle_sft" \
    checkpointing.save_period=3 "checkpointing.checkpoint_dir=$MODELS/needle_sft"
job needle_merge 100 $PYTHON examples/converters/checkpoint_to_hf.py "$MODELS/needle_sft/step_3" "$MODELS/needle"
needle() { learn "$1" 300 "policy.model_name=$MODELS/needle" "${NEEDLE[@]}" grpo.max_num_steps=100 policy.generation.max_new_tokens=10 "${@:2}"; }
needle learn_needle_r32
needle learn_needle_r8 policy.megatron_cfg.peft.dim=8 policy.megatron_cfg.peft.alpha=8
needle learn_needle_full policy.megatron_cfg.peft.enabled=false policy.megatron_cfg.optimizer.lr=2e-5 \
    policy.megatron_cfg.optimizer.min_lr=2e-6 policy.megatron_cfg.scheduler.lr_warmup_init=2e-6
[[ -n "${GSM8K:-}" ]] && learn learn_gsm8k 590 grpo.max_num_steps=100 grpo.val_period=50 \
    data.train.dataset_name=gsm8k "data.train.data_path=$GSM8K/train.jsonl" '~data.train.task_params' data.train.size=null \
    data.validation.dataset_name=gsm8k "data.validation.data_path=$GSM8K/test.jsonl" '~data.validation.task_params' \
    data.default.prompt_file=examples/prompts/math.txt policy.max_total_sequence_length=512 \
    policy.generation.max_new_tokens=256 policy.train_micro_batch_size=32
refit refit8 500 qwen3-8b 5
step step8 300 qwen3-8b --steps 4 --memory 0.4 --micro-batch-tokens 8192 --logits-chunk 4096 --verify-every 2
rm -rf "$MODELS"
exit $((FAILED > 0))
