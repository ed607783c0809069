"""`data` and `env`: where prompts come from and what scores the answers."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from nemo_rl.config.schema.section import Section, derived, group


class TableConfig(Section):
    """A dataset, whatever it is used for."""

    dataset_name: str = Field(
        "nvidia/OpenMathInstruct-2",
        min_length=1,
        description=(
            "A known name (`gsm8k`, `reasoning_gym:TASK`, `tiny_max`, ...), `ResponseDataset` for the file in "
            "`data_path`, "
            "the path of a file, or a Hugging Face Hub id."
        ),
    )
    data_path: str | None = Field(None, description="File or folder of a local dataset (JSONL, Parquet or CSV).")
    split: str | None = Field(
        None,
        description="Split of the dataset; null takes `train` (OpenMathInstruct-2: `train_1M`), for validation `test`.",
    )
    subset: str | None = Field(None, description="Configuration (subset) of a Hub dataset.")
    seed: int | None = Field(None, ge=0, description="Seed of generated tasks and of the split; null takes the run's.")
    size: int | None = Field(None, ge=1, description="Use at most so many rows, or generate so many; null for all.")
    input_key: str | None = Field(
        None, description="Column with the problem; null is that of a known dataset, else `input`."
    )
    output_key: str | None = Field(
        None, description="Column with the expected answer; null is that of a known dataset, else `output`."
    )
    task_params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of a generated task, e.g. of a reasoning-gym task."
    )
    prompt_file: str | None = Field(
        None, description="Text file with `{}` for the problem; null takes `data.default`'s, if there is one."
    )
    system_prompt_file: str | None = Field(
        None, description="System prompt; null takes `data.default`'s, if there is one."
    )


class DatasetConfig(TableConfig):
    env_name: str | None = Field(
        None, description="Environment that scores this dataset; null takes `data.default`'s, else the dataset's own."
    )


class HeldOutConfig(Section):
    """The part of a training set that serves as the validation set."""

    split_validation_size: float | None = Field(
        None,
        ge=0,
        description=(
            "Held out as the validation set: a fraction below 1, or a number of rows. Null is 0.05 without "
            "`data.validation`, else 0."
        ),
    )


class TrainDatasetConfig(HeldOutConfig, DatasetConfig):
    """Prompts to train on."""


def held_out(train: HeldOutConfig, validation: Section | None) -> float:
    """What was asked for; unless there is a validation set, 5 % by default."""
    given = train.split_validation_size
    return given if given is not None else (0.05 if validation is None else 0.0)


class DataDefaultsConfig(Section):
    env_name: str | None = Field(
        None, description="Environment of datasets that name none; null is the dataset's own, for tables `math`."
    )
    prompt_file: str | None = Field(
        None, description="Text file with `{}` where the problem goes; null sends the problem as it is."
    )
    system_prompt_file: str | None = Field(None, description="Text file with the system prompt; null for none.")


class DataConfig(Section):
    max_input_seq_length: int = derived(
        "${policy.max_total_sequence_length}",
        ge=1,
        description="Prompts longer than this many tokens are left out, and counted.",
    )
    shuffle: bool = Field(True, description="Draw training prompts in a random order that `grpo.seed` determines.")
    train: TrainDatasetConfig = group(TrainDatasetConfig, "Training prompts.")
    validation: DatasetConfig | None = Field(
        None, description="Validation prompts; null uses what `data.train.split_validation_size` holds out."
    )
    default: DataDefaultsConfig = group(DataDefaultsConfig, "What datasets use for keys they leave null.")

    @property
    def held_out(self) -> float:
        """What of the training set serves as the validation set: a fraction below 1, or a number of rows."""
        return held_out(self.train, self.validation)


class GradingConfig(Section):
    num_workers: int = Field(8, ge=1, description="Processes that grade.")
    timeout_s: float = Field(10.0, gt=0, description="Seconds for one answer; a grader that takes longer is stopped.")


class MathEnvConfig(GradingConfig):
    verifier: Literal["math"] = Field(
        "math",
        description="Reads the last box, answer tag or `####`; compares numbers exactly, the rest by math-verify.",
    )


class ReasoningGymEnvConfig(GradingConfig):
    """Scores answers with the scorer of the reasoning-gym task that made the problem."""


class CustomEnvConfig(GradingConfig):
    entry_point: str | None = Field(
        None,
        pattern=r"^.+:\w+$",
        description="Reward function or environment class, `package.module:name` or `file.py:name`.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Settings of one's own, handed to the environment."
    )


class EnvConfig(Section):
    """Environments by name; a name that is not built in is one's own and needs an entry point.

    `exact_match` and `guess_number` are built in too, but have no settings.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, CustomEnvConfig]

    math: MathEnvConfig = group(MathEnvConfig, "Grades mathematical answers.")
    reasoning_gym: ReasoningGymEnvConfig = group(
        ReasoningGymEnvConfig, "Grades reasoning-gym answers by the task's own scorer."
    )

    def named(self) -> dict[str, GradingConfig]:
        """Every environment by its name, built-in ones first."""
        return {"math": self.math, "reasoning_gym": self.reasoning_gym, **self.__pydantic_extra__}
