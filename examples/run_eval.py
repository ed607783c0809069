"""Accuracy and pass@k of a model, a checkpoint or an adapter on a dataset.

uv run examples/run_eval.py policy.model_name=FOLDER_OR_HUB_ID     a model
uv run examples/run_eval.py eval.checkpoint=results/grpo/step_20   what a run saved
uv run examples/run_eval.py eval.adapter_path=FOLDER ...           a PEFT adapter; eval.adapter=native for vLLM's LoRA
"""

import sys
from pathlib import Path

from nemo_rl.config.cli import entry_point
from nemo_rl.config.plan_sft import describe_eval_plan
from nemo_rl.config.schema import EvalMasterConfig

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "eval.yaml"


def run(config: EvalMasterConfig) -> int:
    from nemo_rl.algorithms.main import run_eval

    return run_eval(config)


if __name__ == "__main__":
    sys.exit(entry_point(sys.argv[1:], DEFAULT_CONFIG, EvalMasterConfig, describe_eval_plan, run))
