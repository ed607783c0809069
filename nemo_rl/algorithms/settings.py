"""From the configuration to the arguments of pure functions and plain components."""

from nemo_rl.algorithms.losses import ClippedPGLoss
from nemo_rl.config.schema import EngineConfig, GenerationConfig, MasterConfig, TrainingConfig
from nemo_rl.environments.settings import EnvironmentSettings
from nemo_rl.experience.episodes import RolloutSettings
from nemo_rl.generation.interfaces import SamplingSettings
from nemo_rl.utils.logger_backends import BackendSettings, MlflowSettings, WandbSettings


def make_loss(config: MasterConfig) -> ClippedPGLoss:
    """The loss of `loss_fn`. With `use_kl_in_reward` the KL is in the rewards already, so its weight here is 0."""
    fields = config.loss_fn.model_dump()
    if fields.pop("use_kl_in_reward"):
        fields["reference_policy_kl_penalty"] = 0.0
    return ClippedPGLoss(**fields)


def sampling_settings(generation: GenerationConfig, eos_token_id: int | None, *, validation: bool) -> SamplingSettings:
    """How training samples; with `validation`, by `val_*` where given. `eos_token_id` is the tokenizer's."""
    temperature, top_p, top_k = generation.temperature, generation.top_p, generation.top_k
    if validation:
        temperature = temperature if generation.val_temperature is None else generation.val_temperature
        top_p = top_p if generation.val_top_p is None else generation.val_top_p
        top_k = top_k if generation.val_top_k is None else generation.val_top_k
    # Of itself the engine stops at what generation_config.json says, and knows the tokenizer only for stop strings.
    ends = [] if generation.ignore_eos or eos_token_id is None else [eos_token_id]
    return SamplingSettings(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_token_ids=tuple(dict.fromkeys([*ends, *(generation.stop_token_ids or ())])),
        stop_strings=tuple(generation.stop_strings or ()),
        ignore_eos=generation.ignore_eos,
    )


def rollout_settings(config: MasterConfig, eos_token_id: int | None, *, validation: bool = False) -> RolloutSettings:
    """Sampling and length limits of training or validation episodes."""
    generation = config.policy.generation
    return RolloutSettings(
        max_new_tokens=generation.max_new_tokens,
        max_total_tokens=config.policy.max_total_sequence_length,
        max_turns=config.grpo.max_rollout_turns,
        sampling=sampling_settings(generation, eos_token_id, validation=validation),
        seed=config.grpo.seed if generation.seed_per_sample else None,
        template_kwargs=config.policy.tokenizer.chat_template_kwargs or {},
    )


def environment_settings(config: EngineConfig, name: str) -> EnvironmentSettings:
    """Settings of the environment `name`; one that the configuration does not mention gets the defaults."""
    given = config.env.named().get(name)
    return EnvironmentSettings() if given is None else EnvironmentSettings(**given.model_dump())


def backend_settings(config: TrainingConfig) -> BackendSettings:
    """Which trackers are on."""
    logger = config.logger
    name = logger.run_name or config.policy.model_name.rstrip("/").rpartition("/")[2]
    mlflow = logger.mlflow
    return BackendSettings(
        tensorboard=logger.tensorboard_enabled,
        wandb=WandbSettings(logger.wandb.project, logger.wandb.name or name) if logger.wandb_enabled else None,
        mlflow=MlflowSettings(mlflow.experiment_name, mlflow.run_name or name, mlflow.tracking_uri)
        if logger.mlflow_enabled
        else None,
    )
