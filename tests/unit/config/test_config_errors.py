"""Every mistake a user can make, and the sentence that answers it: one table."""

from pathlib import Path

import pytest

from nemo_rl.config import ConfigError, load_config

LORA = "policy.megatron_cfg.peft"
OPTIMIZER = "policy.megatron_cfg.optimizer"
VLLM = "policy.generation.vllm_cfg"
RESOURCES = "policy.generation.colocated.resources"
TIS = "loss_fn.truncated_importance_sampling"
IS_ON = "loss_fn.use_importance_sampling_correction=true"
APART = "policy.generation.colocated.enabled=false"
TP4 = ("cluster.gpus_per_node=4", "policy.megatron_cfg.tensor_model_parallel_size=4")
CASES: list[tuple[str, tuple[str, ...], str]] = [
    # keys and types
    ("typo in a key", ("policy.train_micro_batch_sze=1",), "did you mean `policy.train_micro_batch_size`"),
    ("typo in a section", ("polcy.precision=float32",), "did you mean `policy.precision`"),
    ("right name, wrong place", ("lr=1.0e-5",), f"did you mean `{OPTIMIZER}.lr`"),
    ("added unknown key", ("+grpo.num_promts_per_step=4",), "`grpo.num_promts_per_step` is not a key.*did you mean"),
    ("deleting what is not there", ("~grpo.nope",), "there is no `grpo.nope` to delete"),
    ("number in quotes", (f"{OPTIMIZER}.lr='1e-5'",), r"lr must be a number, found '1e-5'; write it without quotes"),
    ("float for a count", ("grpo.max_num_steps=1e3",), "max_num_steps must be a whole number, found 1000.0"),
    ("integer for a switch", ("logger.wandb_enabled=1",), "must be true or false, found 1; write true"),
    ("number for a name", ("logger.run_name=12",), 'must be text, found 12; put it in quotes, as in "12"'),
    ("text for a list", ("policy.generation.stop_strings=x",), "must be a list"),
    ("null for a number", ("grpo.seed=null",), "seed must be a whole number, found null"),
    ("infinite number", (f"{OPTIMIZER}.lr=inf",), "lr must be a finite number"),
    ("value for a section", ("policy.sequence_packing=true",), "policy.sequence_packing must be a mapping of keys"),
    (
        "other spelling",
        ("policy.precision=bf16",),
        "must be bfloat16, float16 or float32, found 'bf16'; write bfloat16",
    ),
    ("unknown choice", ("loss_fn.reference_policy_kl_type=k4",), "must be k1, k2 or k3, found 'k4'"),
    ("below the limit", ("grpo.num_prompts_per_step=0",), "must be at least 1, found 0"),
    ("above the limit", (f"{VLLM}.gpu_memory_utilization=1.2",), "must be at most 1, found 1.2"),
    ("list of datasets", ("data.train=[]",), "data.train must be a mapping of keys.*one dataset per run"),
    ("another engine", ("policy.generation.backend=sglang",), "backend must be vllm, found 'sglang'; vLLM is the one"),
    ("another trainer", ("policy.megatron_cfg.enabled=false",), "must be true, found false; Megatron is the one"),
    ("vLLM's spelling of no top_k", ("policy.generation.top_k=-1",), "must be at least 1.*null samples from all"),
    ("greedy rollouts", ("policy.generation.temperature=0",), "greater than 0, found 0; greedy rollouts"),
    ("nucleus sampling", ("policy.generation.top_p=0.9",), "sample from a part of the vocabulary.*set val_top_p"),
    ("most likely tokens", ("policy.generation.top_k=50",), "train with top_k=null and set val_top_k"),
    (
        "penalty without its log-probabilities",
        ("loss_fn.use_kl_in_reward=true", "loss_fn.force_on_policy_ratio=true", "policy.train_global_batch_size=512"),
        "use_kl_in_reward=true needs the log-probabilities that loss_fn.force_on_policy_ratio=true leaves out",
    ),
    ("packing that is not built", ("policy.sequence_packing.algorithm=first_fit_shuffle",), "found .first_fit_shuffle"),
    (
        "adapter by another name",
        (f"{LORA}.target_modules=[linear_qkv,o_proj]",),
        "part of Megatron's linear_proj; write",
    ),
    (
        "one file twice",
        ("data.train.dataset_name=data/rows.jsonl", "data.validation={dataset_name: data/rows.jsonl}"),
        "data.validation is the training set",
    ),
    ("one and a half rows", ("data.train.split_validation_size=1.5",), "a fraction below 1 or a whole number of rows"),
    # the command line's grammar
    ("not an override", ("a=b=c",), "'a=b=c' is not understood"),
    ("a sweep", ("grpo.seed=1,2",), "asks for several runs"),
    ("a package", ("grpo@x=1",), "`@`.*not supported"),
    ("adding twice", ("grpo.seed=1", "+grpo.seed=2"), r"already set, to 1 by the command line; write grpo.seed="),
    ("deleting another value", ("grpo.seed=1", "~grpo.seed=2"), "`grpo.seed` is 1, so it is not deleted"),
    # references
    ("reference to nothing", ("grpo.seed='${grpo.nope}'",), r"grpo.seed: a \$\{...\} reference cannot be resolved"),
    ("reference to itself", ("grpo.seed='${grpo.seed}'",), "grpo.seed: .*[Rr]ecursive"),
    ("division by zero", ("grpo.seed='${div:4,0}'",), "divides by zero"),
    ("sum of text", ("grpo.seed='${add:1,x}'",), "add takes numbers, and 'x' is none"),
    # batches and lengths
    ("group of one", ("grpo.num_generations_per_prompt=1",), "num_generations_per_prompt=1 leaves nothing to compare"),
    ("uneven optimizer steps", ("policy.train_global_batch_size=100",), "must divide the rollouts.*32 x 16 = 512"),
    (
        "uneven micro-batches",
        ("policy.sequence_packing.enabled=false", "policy.train_micro_batch_size=3"),
        r"train_global_batch_size=512 must be a multiple of .* 3 x 1 = 3",
    ),
    (
        "uneven ranks",
        ("cluster.gpus_per_node=3",),
        "train_global_batch_size=512 must be a multiple of the 3 data-parallel ranks",
    ),
    ("prompt too long", ("data.max_input_seq_length=513",), "max_input_seq_length=513 must be at most .*=512"),
    ("engine too short", (f"{VLLM}.max_model_len=256",), "max_model_len=256 must be at least .*=512"),
    ("row too short", ("policy.sequence_packing.train_mb_tokens=256",), "cannot hold the longest sequence.*512"),
    (
        "chunks of kept logits",
        ("policy.logprob_chunk_size=64", "policy.megatron_cfg.defer_fp32_logits=false"),
        "needs policy.megatron_cfg.defer_fp32_logits=true",
    ),
    (
        "penalty longer than the response",
        ("grpo.reward_shaping.enabled=true", "grpo.reward_shaping.overlong_buffer_length=600"),
        "overlong_buffer_length=600 must be at most max_response_length=512",
    ),
    # optimizer and schedule
    ("two clip norms", (f"{OPTIMIZER}.clip_grad=0.5",), "clip_grad=0.5 differs from policy.max_grad_norm=1.0"),
    ("bf16 against precision", ("policy.precision=float32", f"{OPTIMIZER}.bf16=true"), "bf16=true contradicts"),
    ("min_lr above lr", (f"{OPTIMIZER}.min_lr=1e-3",), "min_lr=0.001 must be at most lr=5e-06"),
    ("warm-up from above", ("policy.megatron_cfg.scheduler.lr_warmup_init=1",), "lr_warmup_init=1.0 must be at most"),
    ("warm-up only", ("policy.megatron_cfg.scheduler.lr_warmup_iters=1000",), "must be less than lr_decay_iters=1000"),
    # parallelism
    ("axes and devices", ("policy.megatron_cfg.tensor_model_parallel_size=2",), "2 x 1 x 1 = 2"),
    ("engine and devices", (f"{VLLM}.tensor_parallel_size=2",), "the 1 devices of generation must be a multiple"),
    ("sequence parallel alone", ("policy.megatron_cfg.sequence_parallel=true",), "tensor_model_parallel_size above 1"),
    (
        "padding for sequence parallel",
        (*TP4, "policy.megatron_cfg.sequence_parallel=true", "policy.make_sequence_length_divisible_by=2"),
        "divisible_by=2 must be a multiple of 4",
    ),
    (
        "padding for context parallel",
        (
            "cluster.gpus_per_node=2",
            "policy.megatron_cfg.context_parallel_size=2",
            "policy.make_sequence_length_divisible_by=2",
        ),
        "divisible_by=2 must be a multiple of 4",
    ),
    ("experts", ("policy.megatron_cfg.expert_model_parallel_size=2",), "must divide the ranks of a stage.*= 1"),
    (
        "uneven stages of one",
        ("policy.megatron_cfg.num_layers_in_last_pipeline_stage=2",),
        "needs pipeline_model_parallel_size above 1",
    ),
    ("overlap", (f"{OPTIMIZER}.use_distributed_optimizer=false",), "overlap_param_gather=true needs"),
    ("fusion on CPU", ("cluster.accelerator=cpu", "policy.megatron_cfg.apply_rope_fusion=true"), "needs a GPU"),
    ("engine stages without async", ("cluster.gpus_per_node=2", f"{VLLM}.pipeline_parallel_size=2"), "async_engine"),
    ("engine experts", (f"{VLLM}.expert_parallel_size=2",), "must be 1 or tensor_parallel_size=1"),
    # placement
    ("no devices named", (APART, "cluster.gpus_per_node=2"), f"{RESOURCES}.gpus_per_node is required"),
    (
        "nothing left for the policy",
        (APART, "cluster.gpus_per_node=2", f"{RESOURCES}.gpus_per_node=2"),
        "leaves the policy 2 - 2 = 0 devices",
    ),
    ("resources while colocated", (f"{RESOURCES}.gpus_per_node=1",), "has no effect while .*colocated.enabled is true"),
    ("no nodes named", (APART, "cluster.num_nodes=2"), f"{RESOURCES}.num_nodes is required"),
    (
        "part of a node of several",
        (
            APART,
            "cluster.num_nodes=2",
            "cluster.gpus_per_node=8",
            f"{RESOURCES}.num_nodes=1",
            f"{RESOURCES}.gpus_per_node=4",
        ),
        "gpus_per_node=4 must equal cluster.gpus_per_node=8",
    ),
    # adapters
    ("both module lists", (f"{LORA}.target_modules=[a]", f"{LORA}.exclude_modules=[b]"), "set one of the two"),
    ("dropout", (f"{LORA}.dropout=0.1",), "dropout=0.1 is refused: rollouts come from merged weights"),
    ("the text None", (f"{LORA}.lora_dtype=None",), r'lora_dtype must be null, found .None.; .*"None" is not null'),
    ("rank zero", (f"{LORA}.dim=0",), "dim must be at least 1, found 0"),
    ("unknown initialiser", (f"{LORA}.lora_A_init_method=uniform",), "xavier, normal, kaiming or zero"),
    ("nothing can move", (f"{LORA}.lora_A_init_method=zero",), "both zero: neither would ever get a gradient"),
    ("adapters without LoRA", ("checkpointing.adapter_path=x",), "needs policy.megatron_cfg.peft.enabled=true"),
    ("start of nothing", (f"{LORA}.enabled=true", "checkpointing.reference=start"), "needs checkpointing.adapter_path"),
    # loss
    ("dual clip of one", ("loss_fn.ratio_clip_c=1.0",), "ratio_clip_c must be greater than 1"),
    ("truncation of nothing", (f"{TIS}_ratio=2.0", f"{TIS}_type=tis"), "truncates a correction that is off"),
    ("truncation without type", (IS_ON, f"{TIS}_ratio=2.0"), "_type is required"),
    ("truncation without bound", (IS_ON, f"{TIS}_type=tis"), "_ratio is required"),
    ("icepop without minimum", (IS_ON, f"{TIS}_ratio=2.0", f"{TIS}_type=icepop"), "_ratio_min is required"),
    ("seq-mask without minimum", (IS_ON, f"{TIS}_ratio=2.0", f"{TIS}_type=seq-mask-tis"), "_ratio_min is required"),
    (
        "bounds in the wrong order",
        (IS_ON, f"{TIS}_ratio=2.0", f"{TIS}_ratio_min=3.0", f"{TIS}_type=icepop"),
        "_ratio_min=3.0 must be less than",
    ),
    (
        "GSPO with a token loss",
        ("loss_fn.sequence_level_importance_ratios=true",),
        "needs loss_fn.token_level_loss=false",
    ),
    (
        "on-policy ratio with two steps",
        ("loss_fn.force_on_policy_ratio=true", "policy.train_global_batch_size=256"),
        "256 must equal .* = 512",
    ),
    ("no reference", ("grpo.skip_reference_policy_logprobs_calculation=true",), "kl_penalty=0, found 0.01"),
    # asynchronous training
    ("async without async engine", ("grpo.async_grpo.enabled=true",), "async_engine=true, found false"),
    ("async colocated", ("grpo.async_grpo.enabled=true",), "colocated.enabled=false, found true"),
    ("async uncorrected", ("grpo.async_grpo.enabled=true",), "use_importance_sampling_correction=true, found false"),
    ("in-flight without async", ("grpo.async_grpo.in_flight_weight_updates=true",), "has no effect while"),
    # engine arguments
    ("argument with an owner", ("policy.generation.vllm_kwargs.dtype=half",), "set by .*vllm_cfg.precision; set that"),
    (
        "sleep has an owner",
        ("policy.generation.vllm_kwargs.enable_sleep_mode=false",),
        "set by .*vllm_cfg.enable_sleep_mode",
    ),
    ("fixed argument", ("policy.generation.vllm_kwargs.logprobs_mode=raw_logits",), "cannot be set"),
    ("empty stop string", ('policy.generation.stop_strings=[""]',), "empty text"),
    # data, validation, checkpoints
    ("unknown environment", ("data.train.env_name=maths",), "maths is not an environment.*did you mean `math`"),
    (
        "new environment without +",
        ("env.my_task.entry_point=a.py:b",),
        r"to add an environment write \+env.my_task.entry_point",
    ),
    ("environment without code", ("+env.mth.num_workers=2",), "env.mth needs an entry_point.*did you mean `env.math`"),
    ("unused environment", ("+env.mine.entry_point=a.b:c",), "env.mine is used by no dataset"),
    ("dataset without file", ("data.train.dataset_name=ResponseDataset",), "data.train.data_path is required"),
    ("no validation data", ("data.train.split_validation_size=0",), "asks for validation, but"),
    (
        "two validation sets",
        ("data.train.split_validation_size=0.1", "data.validation.dataset_name=gsm8k"),
        "both give a validation set",
    ),
    (
        "validation on the training set",
        ("data.train.dataset_name=gsm8k", "data.validation.dataset_name=gsm8k", "data.validation.split=train"),
        "data.validation is the training set",
    ),
    ("metric without kind", ("checkpointing.metric_name=accuracy",), "write val:NAME or train:NAME"),
    ("metric never produced", ("grpo.val_period=0",), "metric_name=val:accuracy is never produced"),
    ("unknown metric", ("checkpointing.metric_name=train:rewrd",), "train:rewrd is not a metric"),
    ("ninety minutes", ("checkpointing.checkpoint_must_save_by='00:00:90:00'",), "days:hours:minutes:seconds"),
    (
        "pass@k of one response",
        ("checkpointing.metric_name=val:pass@8",),
        "val:pass@8 is not a metric that runs produce; known are val:accuracy, val:reward, val:avg_length",
    ),
    (
        "pass@3 of four",
        ("checkpointing.metric_name=val:pass@3", "grpo.val_num_generations_per_prompt=4"),
        "known are .*val:pass@1, val:pass@2, val:pass@4",
    ),
    (
        "test rows twice",
        ("data.train.dataset_name=gsm8k", "data.train.split=test", "data.validation={dataset_name: gsm8k}"),
        "data.validation is the training set.*split=test",
    ),
    ("time of the wrong form", ("checkpointing.checkpoint_must_save_by=3:45",), "days:hours:minutes:seconds"),
    ("both halves", ("debug.rollouts_only=true", "debug.train_from_rollouts=x"), "exclude each other"),
    # keys of NeMo-RL that are not built
    ("DTensor", ("policy.dtensor_cfg.enabled=true",), "refused.*Megatron is the one trainer"),
    ("dynamic batching", ("policy.dynamic_batching.enabled=true",), "refused.*sequence_packing"),
    ("dynamic sampling", ("grpo.use_dynamic_sampling=true",), "use_dynamic_sampling=True is refused"),
    ("8-bit training", ("policy.megatron_cfg.fp8_cfg.enabled=true",), "refused.*8-bit"),
    ("SwanLab", ("logger.swanlab_enabled=true",), "refused.*wandb, tensorboard or mlflow"),
    ("DAPO's grader", ("env.math.math_verify_impl=dapo_math_verify",), "refused.*env.math.verifier"),
    ("expert tensor parallel", ("policy.megatron_cfg.expert_tensor_parallel_size=2",), "refused.*wrong gradients"),
    ("experimental all-to-all", (f"{LORA}.a2a_experimental=true",), "refused"),
    ("CUDA graphs", ("policy.megatron_cfg.cuda_graph_impl=local",), "refused.*CUDA graphs"),
]


@pytest.mark.parametrize(("overrides", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_mistake_is_named_before_anything_starts(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    with pytest.raises(ConfigError, match=message):
        load_config(empty, overrides)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("grpo: {seed: x, val_perod: 3}\npolicy: {dtensor_cfg: {enabled: true}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.endswith(f"(set in {file})") for line in lines)


def test_error_names_the_file_that_set_the_key_not_the_one_that_inherits(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("grpo: {seed: -1}\n")
    (tmp_path / "child.yaml").write_text("defaults: parent.yaml\nlogger: {log_dir: x}\n")
    with pytest.raises(ConfigError, match=r"grpo.seed must be at least 0, found -1 \(set in .*parent.yaml\)"):
        load_config(tmp_path / "child.yaml")


def test_defaults_that_follow_a_wrong_key_do_not_repeat_its_error(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("policy: {precision: fp32}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "run.yaml")
    assert str(caught.value).splitlines() == [
        "policy.precision must be bfloat16, float16 or float32, found 'fp32'; write float32 "
        f"(set in {tmp_path / 'run.yaml'})"
    ]
