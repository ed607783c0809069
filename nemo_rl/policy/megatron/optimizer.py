"""Megatron's optimizer and learning-rate schedule, from the configuration."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.utils import get_model_config

from nemo_rl.config.schema import TrainedPolicyConfig
from nemo_rl.policy.megatron.model import PolicyModel

logger = logging.getLogger(__name__)

# float16 has no room below 6e-8: losses are multiplied by a factor that halves when gradients overflow.
FIRST_LOSS_SCALE, LAST_LOSS_SCALE = 2.0**16, 1.0


@dataclass
class Optimization:
    """The optimizer with its schedule; `step` applies the accumulated gradients once. With float16 the gradients are
    those of the loss times Megatron's loss scale."""

    optimizer: Any
    scheduler: OptimizerParamScheduler

    def step(self) -> dict[str, float] | None:
        """Clip, update, advance the schedule. Returns the gradient norm before clipping and the rates just used.

        None: float16 gradients overflowed, nothing was updated and the loss scale is lower now; make them again.
        Raises FloatingPointError if they are not finite for another reason.
        """
        group = self.optimizer.param_groups[0]
        used = {"lr": float(group["lr"]), "wd": float(group["weight_decay"])}
        scale = float(self.optimizer.get_loss_scale())
        updated, grad_norm, _ = self.optimizer.step()
        # Masters have float32 gradients of their own, which would stay on the GPU while the engine uses it.
        self.optimizer.zero_grad()
        if not updated:
            lower = float(self.optimizer.get_loss_scale())
            if lower == scale:
                raise FloatingPointError("the optimizer refused the step: gradients were not finite")
            logger.info("float16 gradients overflowed at loss scale %g: once more with %g", scale, lower)
            return None
        if not math.isfinite(grad_norm):  # Megatron checks this for float16 only
            raise FloatingPointError(
                f"the norm of the gradients is {float(grad_norm)}, and so are the weights now: the run ends before "
                "anything of it is saved or published"
            )
        self.scheduler.step(increment=1)
        return {"grad_norm": float(grad_norm), **used}


def build_optimization(model: PolicyModel, policy: TrainedPolicyConfig) -> Optimization:
    """Optimizer over the trainable parameters, with float32 masters where they have 16 bits."""
    settings, schedule = policy.megatron_cfg.optimizer, policy.megatron_cfg.scheduler
    config = OptimizerConfig(
        optimizer=settings.optimizer,
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        sgd_momentum=settings.sgd_momentum,
        bf16=model.dtype is torch.bfloat16,
        fp16=model.dtype is torch.float16,
        initial_loss_scale=FIRST_LOSS_SCALE,
        min_loss_scale=LAST_LOSS_SCALE,
        hysteresis=1,
        params_dtype=model.dtype,
        use_distributed_optimizer=settings.use_distributed_optimizer,
        use_precision_aware_optimizer=settings.use_precision_aware_optimizer,
        clip_grad=policy.max_grad_norm or 0.0,
        overlap_param_gather=model.chunks[0].ddp_config.overlap_param_gather,
    )
    optimizer = get_megatron_optimizer(config, model.chunks)
    if model.dtype is torch.float16:
        for chunk in model.chunks:
            get_model_config(chunk).grad_scale_func = optimizer.scale_loss
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=min(schedule.lr_warmup_init, settings.lr),
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=schedule.lr_warmup_iters,
        lr_decay_steps=max(schedule.lr_decay_iters, schedule.lr_warmup_iters + 1),
        lr_decay_style=schedule.lr_decay_style,
        start_wd=schedule.start_weight_decay,
        end_wd=schedule.end_weight_decay,
        wd_incr_steps=max(schedule.lr_decay_iters, 1),
        wd_incr_style=schedule.weight_decay_incr_style,
    )
    return Optimization(optimizer, scheduler)
