"""Rotary positions that a model's config asks for and that Megatron-Bridge drops without a word for many models."""

from typing import Any

_MEGATRONS_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron stretches by in any case (RotaryEmbedding._apply_scaling): that of the published Llamas."""


def check_rotary_positions(provider: Any, hf_config: Any) -> None:
    """ValueError unless Megatron turns positions as `rope_parameters` says, which is what the engine does.

    One entry per kind of layer, as Gemma 3 has it, is gemma3.py's to check.
    """
    rope = getattr(hf_config, "rope_parameters", None) or {}
    match rope.get("rope_type", "default"):
        case "default":
            taken = True
        case "yarn":
            taken = provider.position_embedding_type == "yarn" or provider.multi_latent_attention
        case "linear":
            taken = provider.seq_len_interpolation_factor == rope["factor"]
        case "llama3":
            fixed = {key: rope[key] for key in _MEGATRONS_LLAMA3}
            taken = provider.rope_scaling and provider.rope_scaling_factor == rope["factor"]
            taken = taken and fixed == _MEGATRONS_LLAMA3
        case _:
            taken = False
    if not taken:
        raise ValueError(
            f"Megatron-Bridge does not turn the positions of a {hf_config.model_type} model by {rope}, but vLLM does: "
            "the model cannot be trained with these (config.json, policy.hf_config_overrides.rope_parameters)"
        )
