"""Rules between keys. Each is a function that yields one sentence per illegal combination it finds."""

from nemo_rl.config.rules import algorithm, batches, engine, evaluation, lora, parallelism, running, sft

_TRAINER = (*parallelism.TRAINER_RULES, *batches.TRAINER_RULES, *lora.RULES)

GRPO_RULES = (
    *parallelism.ENGINE_RULES,
    *batches.ROLLOUT_RULES,
    *_TRAINER,
    *algorithm.RULES,
    *engine.RULES,
    *running.DATA_RULES,
    *running.GRPO_RULES,
)
SFT_RULES = (*sft.RULES, *_TRAINER, *running.DATA_RULES)
EVAL_RULES = (*evaluation.RULES, *parallelism.ENGINE_RULES, *parallelism.TRAINER_RULES, *engine.RULES)
