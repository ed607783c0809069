"""What can be known to be wrong before anything is made or started."""

from pathlib import Path
from typing import Any

from nemo_rl.algorithms.checkpoints import compatibility
from nemo_rl.algorithms.folders import check_folder
from nemo_rl.algorithms.settings import backend_settings
from nemo_rl.config.errors import ConfigError
from nemo_rl.config.schema import EvalMasterConfig, TrainingConfig
from nemo_rl.data.errors import DataError
from nemo_rl.data.loader import PromptLoader
from nemo_rl.distributed.cluster import cluster_address
from nemo_rl.utils.checkpoint_files import CheckpointError, check_compatible, load_info
from nemo_rl.utils.logger_backends import check_backends
from nemo_rl.utils.peft_merge import read_adapter, read_adapter_config

RESULTS = ("metrics.json", "samples.jsonl")
"""What an evaluation leaves behind."""


def check_places(config: TrainingConfig) -> None:
    """UserError unless trackers are installed, folders can be written, and several nodes have an address."""
    check_backends(backend_settings(config))
    check_folder("logger.log_dir", config.logger.log_dir)
    if config.checkpointing.enabled:
        check_folder("checkpointing.checkpoint_dir", config.checkpointing.checkpoint_dir)
    cluster_address(config.cluster)


def check_resume(config: TrainingConfig, checkpoint: Path | None, loader: PromptLoader[Any] | None) -> None:
    """CheckpointError unless the checkpoint to go on from has the settings of this run, and the data of `loader`."""
    if checkpoint is None:
        return
    info = load_info(checkpoint)
    if info["data"] is None:
        raise CheckpointError(
            f"{checkpoint} was converted from an adapter and is no point of a run; to train from the adapter set "
            "checkpointing.adapter_path, and another checkpointing.checkpoint_dir"
        )
    position = info["data"].get("loader", info["data"])  # saved rollouts have no loader's
    try:
        check_compatible(info, compatibility(config))
        if loader is not None and "cursor" in position:
            loader.check_state(position)
    except (CheckpointError, DataError) as error:
        raise CheckpointError(f"{checkpoint}: {error}") from error


def check_evaluation(config: EvalMasterConfig) -> None:
    """UserError unless the results have a place of their own and the adapter is there."""
    folder = config.eval.save_path
    check_folder("eval.save_path", folder)
    if held := [name for name in RESULTS if (Path(folder) / name).exists()]:
        raise ConfigError(
            f"eval.save_path={folder} holds {held[0]} already; choose another eval.save_path or remove it"
        )
    cluster_address(config.cluster)
    if config.eval.adapter_path is not None:
        _check_adapter(Path(config.eval.adapter_path), native=config.eval.adapter == "native")


def _check_adapter(folder: Path, *, native: bool) -> None:
    """vLLM reads more kinds of adapters than are merged here, so of one for it only the description is checked."""
    try:
        if not native:
            read_adapter(folder)
        else:
            read_adapter_config(folder)
    except DataError as error:
        raise DataError(f"eval.adapter_path: {error}") from error
