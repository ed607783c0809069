"""`eval` and its `data`: how good a model is on one dataset."""

from typing import Literal

from pydantic import Field

from nemo_rl.config.schema.data import DatasetConfig
from nemo_rl.config.schema.section import Section, derived


class EvalConfig(Section):
    checkpoint: str | None = Field(
        None, description="A checkpoint of a run (`.../step_N`): its model and adapters are evaluated, merged."
    )
    pretrained_checkpoint: str | None = Field(
        None,
        description="Megatron checkpoint of the base that `checkpoint` was trained from; null is the one that the "
        "run named.",
    )
    adapter_path: str | None = Field(None, description="Folder of a PEFT adapter for `policy.model_name`.")
    adapter: Literal["merged", "native"] = Field(
        "merged",
        description="`merged`: into a temporary copy of the model, in float32; `native`: vLLM applies it itself.",
    )
    num_tests_per_prompt: int = Field(1, ge=1, description="Responses per problem.")
    max_rollout_turns: int = Field(
        1, ge=1, description="Most model turns in one episode; above 1 the environment may answer and the model go on."
    )
    k_value: int = Field(
        1, ge=1, description="pass@k is reported for this k, besides 1, 2, 4, ... up to the responses."
    )
    batch_size: int = Field(256, ge=1, description="Problems generated at once.")
    seed: int = Field(42, ge=0, description="Seed of sampling and of generated tasks.")
    save_path: str = Field(
        "results/eval",
        min_length=1,
        description="Folder for samples.jsonl, metrics.json and the resolved configuration; one that holds results is "
        "refused.",
    )


class EvalDataConfig(DatasetConfig):
    dataset_name: str = Field(
        "gsm8k",
        min_length=1,
        description=(
            "A known name (`gsm8k`, `reasoning_gym:TASK`, `tiny_max`, ...), `ResponseDataset` for the file in "
            "`data_path`, the path of a file, or a Hugging Face Hub id."
        ),
    )
    split: str | None = Field(None, description="Split of the dataset; null takes `test`.")
    max_input_seq_length: int = derived(
        "${policy.max_total_sequence_length}",
        ge=1,
        description="Prompts longer than this many tokens are left out, and counted.",
    )
