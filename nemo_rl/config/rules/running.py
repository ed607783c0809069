"""Rules of data, environments, validation, checkpoints and debugging."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from nemo_rl.config.errors import suggestion

if TYPE_CHECKING:
    from nemo_rl.config.schema.data import DatasetConfig, TableConfig
    from nemo_rl.config.schema.master import MasterConfig

BUILT_IN_ENVIRONMENTS = ("math", "reasoning_gym", "exact_match", "guess_number")
_TRAIN_METRICS = (
    "reward",
    "loss",
    "grad_norm",
    "kl_penalty",
    "approx_entropy",
    "gen_kl_error",
    "token_mult_prob_error",
    "mean_gen_tokens_per_sample",
    "truncation_rate",
    "natural_termination_rate",
)
_VALIDATION_METRICS = ("accuracy", "reward", "avg_length")
_FILES = (".jsonl", ".json", ".parquet", ".csv")
TABLES_WITH_SPLITS = ("gsm8k", "OpenMathInstruct-2", "DeepScaler")


def _datasets(config: "MasterConfig") -> Iterator[tuple[str, "DatasetConfig"]]:
    yield "data.train", config.data.train
    if config.data.validation is not None:
        yield "data.validation", config.data.validation


def environments_exist(config: "MasterConfig") -> Iterator[str]:
    """Every name that data uses is configured, and every environment of one's own can be made and is used."""
    known = (*BUILT_IN_ENVIRONMENTS, *config.env.__pydantic_extra__)
    named = [
        ("data.default", config.data.default.env_name),
        *((k, dataset.env_name) for k, dataset in _datasets(config)),
    ]
    for key, name in named:
        if name is not None and name not in known:
            allowed = ", ".join(sorted(known))
            yield f"{key}.env_name={name} is not an environment; known are {allowed}{suggestion(name, known)}"
    used = {name for _, name in named}
    for name, environment in config.env.__pydantic_extra__.items():
        if environment.entry_point is None:
            hint = suggestion(f"env.{name}", [f"env.{built_in}" for built_in in BUILT_IN_ENVIRONMENTS])
            yield f"env.{name} needs an entry_point (package.module:name), as it is not built in{hint}"
        elif name not in used:
            yield f"env.{name} is used by no dataset; name it in data.train.env_name or remove it"


def datasets_are_complete(config: "MasterConfig") -> Iterator[str]:
    for key, dataset in _datasets(config):
        if dataset.dataset_name == "ResponseDataset" and dataset.data_path is None:
            yield f"{key}.data_path is required with dataset_name=ResponseDataset"
    held_out = config.data.train.split_validation_size
    if held_out is not None and held_out > 1 and held_out != int(held_out):
        yield f"data.train.split_validation_size={held_out} must be a fraction below 1 or a whole number of rows"
    if config.data.validation is not None and config.data.train.split_validation_size:
        yield (
            f"data.train.split_validation_size={config.data.train.split_validation_size} and data.validation both give "
            "a validation set; set one of the two"
        )


def validation_differs_from_training(config: "MasterConfig") -> Iterator[str]:
    """The same rows twice would measure memory; a generated task with another seed has other rows."""
    train, validation = config.data.train, config.data.validation
    if validation is None:
        return
    same = all(
        getattr(train, key) == getattr(validation, key)
        for key in ("dataset_name", "data_path", "subset", "task_params")
    )
    splits = (train.split or "train", validation.split or ("test" if _has_splits(validation) else "train"))
    seeds = tuple(config.seed if dataset.seed is None else dataset.seed for dataset in (train, validation))
    if same and splits[0] == splits[1] and seeds[0] == seeds[1]:
        yield (
            f"data.validation is the training set: dataset_name={validation.dataset_name}, split={splits[1]} and "
            f"seed={seeds[1]} are the same; name another split (a generated task: another seed)"
        )


def _has_splits(dataset: "TableConfig") -> bool:
    """Whether a test split is taken where none is named: of tables and folders, not of one file or a generated task."""
    name, path = dataset.dataset_name, dataset.data_path
    on_hub = name.count("/") == 1 and PurePath(name).suffix not in _FILES  # a Hub id may have a dot too
    return (name in TABLES_WITH_SPLITS or on_hub) and (path is None or PurePath(path).suffix not in _FILES)


def validation_has_data(config: "MasterConfig") -> Iterator[str]:
    if _validates(config) and config.data.validation is None and not config.data.held_out:
        yield (
            "grpo.val_period, val_at_start or val_at_end asks for validation, but data.validation is null and "
            "data.train.split_validation_size is 0; set one of them, or val_period=0"
        )


def _validates(config: "MasterConfig") -> bool:
    return config.grpo.val_period > 0 or config.grpo.val_at_start or config.grpo.val_at_end


def checkpoint_metric_is_produced(config: "MasterConfig") -> Iterator[str]:
    checkpointing = config.checkpointing
    if not checkpointing.enabled or checkpointing.metric_name is None:
        return
    kind, name = checkpointing.metric_name.split(":", 1)
    found = f"checkpointing.metric_name={checkpointing.metric_name}"
    if kind == "val" and not (config.grpo.val_period > 0 or config.grpo.val_at_end):
        yield f"{found} is never produced: grpo.val_period is off and val_at_end is false; use train:reward or null"
    known = (*_VALIDATION_METRICS, *_passes(config)) if kind == "val" else _TRAIN_METRICS
    if name not in known:
        yield f"{found} is not a metric that runs produce; known are {', '.join(f'{kind}:{n}' for n in known)}"


def _passes(config: "MasterConfig") -> list[str]:
    """pass@1, pass@2, pass@4, ... up to the responses of one problem, if there are several."""
    tries = config.grpo.val_num_generations_per_prompt
    return [f"pass@{2**power}" for power in range(tries.bit_length())] if tries > 1 else []


def debug_seams_agree(config: "MasterConfig") -> Iterator[str]:
    debug = config.debug
    if debug.rollouts_only and debug.train_from_rollouts is not None:
        yield (
            "debug.rollouts_only and debug.train_from_rollouts exclude each other: one has no trainer, the "
            "other no engine"
        )


DATA_RULES = (datasets_are_complete, validation_differs_from_training)
GRPO_RULES = (
    environments_exist,
    validation_has_data,
    checkpoint_metric_is_produced,
    debug_seams_agree,
)
