"""The parallel layouts that tests run: number of ranks and overrides."""

from tests.unit.policy.jobs import MEGATRON

_TP2 = f"{MEGATRON}.tensor_model_parallel_size=2"
_PP2 = f"{MEGATRON}.pipeline_model_parallel_size=2"

LAYOUTS: dict[str, tuple[int, list[str]]] = {
    "single": (1, []),
    "tp2": (2, [_TP2]),
    "tp2-sp": (2, [_TP2, f"{MEGATRON}.sequence_parallel=true"]),
    "pp2": (2, [_PP2]),
    "dp2": (2, []),
    "cp2": (2, [f"{MEGATRON}.context_parallel_size=2"]),
    "tp2-pp2": (4, [_TP2, _PP2]),
}
PACKED = [
    "policy.sequence_packing.enabled=true",
    "policy.sequence_packing.train_mb_tokens=64",
    "policy.sequence_packing.logprob_mb_tokens=64",
    "policy.sequence_packing.sequence_length_round=8",
]
TEMPERATURE = "policy.generation.temperature=0.7"
CASES = [
    *((model, layout, packed) for model in ["qwen3"] for layout in LAYOUTS for packed in (False, True)),
    *((model, layout, True) for model in ["llama", "qwen2"] for layout in ("tp2-sp", "pp2", "cp2", "tp2-pp2")),
    ("qwen2", "dp2", False),
    ("llama", "cp2", False),
    *(
        ("gemma3", *case)
        for case in [("single", False), ("tp2-sp", True), ("pp2", True), ("cp2", False), ("cp2", True)]
    ),
]
