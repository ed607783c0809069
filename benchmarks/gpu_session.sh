#!/usr/bin/env bash
# Everything that is measured on one GPU, job by job, each with a deadline of its own: what ends up in docs/guides/gpu.md.
#
#   bash benchmarks/gpu_session.sh OUT [JOB...]        all jobs, or those named; LIST=1 prints them
#
# OUT gets NAME.log, NAME.json, and for learning runs metrics, configuration and plot. PYTHON is the interpreter (default
# python3: workers run in it too); SMOLLM2 a folder of SmolLM2-135M-Instruct, GSM8K one with train.jsonl and test.jsonl.
# The first engine of a fresh host takes a minute longer than later ones: imports, compilation and graphs.
# Models made on the way are kept in MODELS, if it names a folder. SHARED=1 lets several learning runs have the GPU at once:
# engines stay awake, in a small KV cache. Curves stay right; seconds are then no measurement.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
SMOLLM2="${SMOLLM2:-HuggingFaceTB/SmolLM2-135M-Instruct}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
OUT="${1:?folder for the results}"
shift
WANTED=("$@")
[[ -n "${MODELS:-}" ]] || { MODELS="$(mktemp -d)"; trap 'rm -rf "$MODELS"' EXIT; }
FAILED=0
mkdir -p "$OUT" "$MODELS"
OUT="$(cd "$OUT" && pwd)"

HERE=(cluster.worker_environment=driver logger.monitor_gpus=false checkpointing.enabled=false)
BASE=examples/configs/grpo_math_1B_megatron_lora.yaml
RECIPE=examples/configs/recipes/llm/grpo-smollm2-135m-1n1g-megatron-lora.yaml
SFT=examples/configs/recipes/llm/sft-smollm2-135m-cpu-megatron-lora.yaml
ENGINE=(policy.generation.vllm_cfg.gpu_memory_utilization=0.4)
if [[ -n "${SHARED:-}" ]]; then
    ENGINE=(policy.generation.vllm_cfg.gpu_memory_utilization=0.1 policy.generation.vllm_cfg.enable_sleep_mode=false
        policy.generation.vllm_kwargs.kv_cache_memory_bytes=4000000000 policy.generation.vllm_cfg.enforce_eager=true
        env.math.num_workers=2 env.reasoning_gym.num_workers=2)
fi

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

learn() { # NAME SECONDS KEY=VALUE...; of its rollouts those of the first and the last training step are kept
    local name="$1" seconds="$2"
    shift 2
    job "$name" "$seconds" $PYTHON examples/run_grpo.py --config "$RECIPE" "${HERE[@]}" "policy.model_name=$SMOLLM2" \
        "${ENGINE[@]}" grpo.max_num_steps=100 "logger.log_dir=$OUT/$name" "$@"
    find "$OUT/$name" -path '*/rollouts/*' ! -name step_1.jsonl ! -name step_100.jsonl -delete 2>/dev/null
}

sft() { # NAME SECONDS KEY=VALUE...; then NAME_merge makes the model of its last step, $MODELS/NAME, for GRPO to start from
    local name="$1" seconds="$2"
    shift 2
    job "$name" "$seconds" $PYTHON examples/run_sft.py --config "$SFT" "${HERE[@]}" checkpointing.enabled=true \
        checkpointing.save_period=1000 "checkpointing.checkpoint_dir=$MODELS/$name-checkpoints" cluster.accelerator=cuda \
        policy.precision=float16 "policy.model_name=$SMOLLM2" "logger.log_dir=$OUT/$name" "$@"
    job "${name}_merge" 120 bash -c '$0 examples/converters/checkpoint_to_hf.py "$1"-checkpoints/step_* "$1"' "$PYTHON" "$MODELS/$name"
}

# What full fine-tuning and a smaller rank change in a learning run.
FULL=(policy.megatron_cfg.peft.enabled=false policy.megatron_cfg.optimizer.lr=2e-5
    policy.megatron_cfg.optimizer.min_lr=2e-6 policy.megatron_cfg.scheduler.lr_warmup_init=2e-6)
RANK8=(policy.megatron_cfg.peft.dim=8 policy.megatron_cfg.peft.alpha=8)
FAST=(--memory 0.5 --micro-batch-tokens 65536 --logits-chunk 4096)
job gpu_tests 240 $PYTHON -m pytest -q -p no:cacheprovider tests/gpu
step step06 260 qwen3-0.6b --steps 6 "${FAST[@]}"
step step06_apart 150 qwen3-0.6b --steps 6 "${FAST[@]}" --core-apart
step step06_seeds 150 qwen3-0.6b --steps 6 "${FAST[@]}" --seed-per-sample
job rollout06 450 $PYTHON benchmarks/rollout.py @qwen3-0.6b --variants bare,ours --repeats 5 --json "$OUT/rollout06.json"
refit refit06 200 qwen3-0.6b 50
job train06 150 $PYTHON benchmarks/train_step.py @qwen3-0.6b --variants 65536:4096,20480:4096 --profile "$OUT/train06.txt" --json "$OUT/train06.json"
job bridge06 200 $PYTHON benchmarks/bridge_loop.py @qwen3-0.6b --json "$OUT/bridge06.json"
job functional 900 env PYTHON="$PYTHON" OUTPUT_DIR="$OUT/functional" tests/L1_Functional_Tests_GPU.sh
learn learn_r32 400
learn learn_bf16 400 policy.precision=bfloat16
learn learn_r8 400 "${RANK8[@]}"
learn learn_full 400 "${FULL[@]}"
# A skill, not a constant answer: which of 2 to 4 people is asked for. Three steps of SFT teach to answer with a name only.
NEEDLE=(policy.model_name="$MODELS/needle_sft" data.default.prompt_file=null policy.generation.max_new_tokens=10
    policy.max_total_sequence_length=160)
for part in train validation; do
    NEEDLE+=("data.$part.dataset_name=reasoning_gym:needle_haystack" "~data.$part.task_params"
        "++data.$part.task_params.min_num_statements=2" "++data.$part.task_params.max_num_statements=4")
done
sft needle_sft 150 data.train.dataset_name=reasoning_gym:needle_haystack ++data.train.task_params.min_num_statements=2 \
    ++data.train.task_params.max_num_statements=4 data.train.size=512 policy.max_total_sequence_length=192 \
    sft.max_num_steps=3 policy.megatron_cfg.scheduler.lr_warmup_iters=2
learn learn_needle_r32 500 "${NEEDLE[@]}"
learn learn_needle_r8 500 "${NEEDLE[@]}" "${RANK8[@]}"
learn learn_needle_full 500 "${NEEDLE[@]}" "${FULL[@]}"
if [[ -n "${GSM8K:-}" ]]; then # two passes over the solutions, all parameters; then GRPO
    MATH=(policy.model_name="$MODELS/gsm8k_sft" grpo.val_period=50 grpo.max_val_samples=512 grpo.val_batch_size=512
        data.default.prompt_file=null policy.max_total_sequence_length=512 policy.generation.max_new_tokens=256
        policy.train_micro_batch_size=32 data.train.size=null data.validation.size=512
        policy.generation.vllm_cfg.enforce_eager=false) # answers are long: graphs pay
    for part in train validation; do
        MATH+=("data.$part.dataset_name=gsm8k" "~data.$part.task_params")
    done
    MATH+=("data.train.data_path=$GSM8K/train.jsonl" "data.validation.data_path=$GSM8K/test.jsonl")
    sft gsm8k_sft 300 data.default.prompt_file=null "data.train.data_path=$GSM8K/train.jsonl" \
        policy.megatron_cfg.peft.enabled=false policy.train_global_batch_size=64 policy.train_micro_batch_size=64 \
        policy.megatron_cfg.optimizer.lr=2e-4 policy.megatron_cfg.scheduler.lr_warmup_init=2e-5 \
        sft.max_num_epochs=2 sft.max_num_steps=220 sft.val_period=55 policy.logprob_chunk_size=4096
    learn learn_gsm8k_r32 900 "${MATH[@]}"
    learn learn_gsm8k_r8 900 "${MATH[@]}" "${RANK8[@]}"
    learn learn_gsm8k_full 900 "${MATH[@]}" "${FULL[@]}"
fi
job rollout8 450 $PYTHON benchmarks/rollout.py @qwen3-8b --variants bare,ours --memory 0.4 --json "$OUT/rollout8.json"
refit refit8 500 qwen3-8b 5
step step8 300 qwen3-8b --steps 4 --memory 0.4 --micro-batch-tokens 8192 --logits-chunk 4096 --verify-every 2
exit $((FAILED > 0))
