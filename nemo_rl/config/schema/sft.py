"""`sft` and its `data`: supervised fine-tuning on conversations."""

from pydantic import Field

from nemo_rl.config.schema.data import HeldOutConfig, TableConfig, held_out
from nemo_rl.config.schema.policy import TrainedPolicyConfig
from nemo_rl.config.schema.section import Section, derived, group


class SFTConfig(Section):
    max_num_epochs: int = Field(1, ge=1, description="Passes over the training set after which the run ends.")
    max_num_steps: int = Field(60, ge=1, description="Optimizer steps after which the run ends.")
    val_period: int = Field(10, ge=-1, description="Validate every so many steps; 0 and -1 mean never.")
    val_batches: int = Field(8, ge=-1, description="Batches of one validation; 0 and -1 mean the whole set.")
    val_global_batch_size: int = Field(32, ge=1, description="Conversations of one validation batch, over all ranks.")
    val_at_start: bool = Field(True, description="Validate before the first step.")
    val_at_end: bool = Field(False, description="Validate after the last step.")
    seed: int = Field(42, ge=0, description="Seed of everything random: data order, adapters.")


class SFTPolicyConfig(TrainedPolicyConfig):
    train_global_batch_size: int = Field(
        32, ge=1, description="Conversations that one optimizer step sees, over all ranks."
    )
    max_total_sequence_length: int = Field(1024, ge=2, description="Longest conversation, in tokens.")


class ConversationsConfig(TableConfig):
    dataset_name: str = Field(
        "gsm8k",
        min_length=1,
        description=(
            "A known name (`gsm8k`, `tiny_max`, `reasoning_gym:TASK`, ...), `ResponseDataset` for the file in "
            "`data_path`, the path of a file, or a Hugging Face Hub id."
        ),
    )
    chat_key: str = Field(
        "messages",
        min_length=1,
        description="Column with a list of chat messages; a table without it is read by `input_key` and `output_key`.",
    )


class TrainConversationsConfig(HeldOutConfig, ConversationsConfig):
    """Conversations to train on."""


class SFTDataDefaultsConfig(Section):
    prompt_file: str | None = Field(
        None, description="Text file with `{}` where the problem goes; null sends the problem as it is."
    )
    system_prompt_file: str | None = Field(None, description="Text file with the system prompt; null for none.")


class SFTDataConfig(Section):
    max_input_seq_length: int = derived(
        "${policy.max_total_sequence_length}",
        ge=1,
        description="Conversations longer than this many tokens are left out, and counted.",
    )
    add_bos: bool = Field(False, description="Begin with the tokenizer's first token where the template does not.")
    add_eos: bool = Field(True, description="End an answer with the tokenizer's end token where the template does not.")
    shuffle: bool = Field(True, description="Draw conversations in a random order that `sft.seed` determines.")
    train: TrainConversationsConfig = group(TrainConversationsConfig, "Training conversations.")
    validation: ConversationsConfig | None = Field(
        None, description="Validation conversations; null uses what `data.train.split_validation_size` holds out."
    )
    default: SFTDataDefaultsConfig = group(SFTDataDefaultsConfig, "What datasets use for keys they leave null.")

    @property
    def held_out(self) -> float:
        """What of the training set serves as the validation set: a fraction below 1, or a number of rows."""
        return held_out(self.train, self.validation)
