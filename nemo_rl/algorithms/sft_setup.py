"""Builds an SFT run from its configuration. Everything that can be wrong is checked before the first worker starts."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nemo_rl.algorithms.checkpoints import latest_checkpoint, open_checkpoints, restore
from nemo_rl.algorithms.losses import NLLLoss
from nemo_rl.algorithms.preflight import check_places, check_resume
from nemo_rl.algorithms.run_parts import common_parts, open_logger
from nemo_rl.algorithms.sft import SFTRun
from nemo_rl.algorithms.sft_data import load_sft_data
from nemo_rl.config.schema import SFTMasterConfig
from nemo_rl.data.loader import PromptLoader
from nemo_rl.distributed.cluster import ray_cluster
from nemo_rl.distributed.environments import resolve_accelerator, worker_environment
from nemo_rl.distributed.workers import start_policy

logger = logging.getLogger(__name__)


@contextmanager
def sft_run(config: SFTMasterConfig) -> Iterator[SFTRun]:
    """A run that is ready to train, and that leaves nothing behind when the context ends, however it ends."""
    check_places(config)
    accelerator = resolve_accelerator(config.cluster)
    data = load_sft_data(config)
    logger.info("%d training and %d validation conversations", len(data.train), len(data.validation))
    sft, devices = config.sft, config.policy_devices
    examples = PromptLoader(data.train, config.policy.train_global_batch_size, config.data.shuffle, sft.seed)
    checkpoints = open_checkpoints(config)
    resumed = latest_checkpoint(config, checkpoints)
    check_resume(config, resumed, examples)
    python = worker_environment(config.cluster, accelerator)
    total = min(sft.max_num_steps, sft.max_num_epochs * examples.steps_per_epoch)
    with ExitStack() as stack:
        run_logger = stack.enter_context(open_logger(config, checkpoints, resumed))
        logger.info("run directory %s", run_logger.run_dir)
        gpus = config.cluster.gpus_per_node if accelerator.is_cuda else 0
        logs = run_logger.run_dir / "worker_logs"
        stack.enter_context(ray_cluster(config.cluster, workers=devices + 1, gpus=gpus, logs_to=logs))
        policy = stack.enter_context(start_policy(config, data.model.path, accelerator, python))
        run = SFTRun(
            **common_parts(config, data.model.config, policy, accelerator, total, stack),
            loss=NLLLoss(),
            examples=examples,
            validation_examples=data.validation,
            logger=run_logger,
            checkpoints=checkpoints,
            devices={"all": devices, "policy": devices},
        )
        if resumed is not None and checkpoints is not None:
            restore(run, resumed, checkpoints)
        with stack:
            yield run
