"""What a rank process asks of nemo_rl.policy.megatron.gemma3 for the tests."""

from typing import Any

from transformers import Gemma3TextConfig

from tests.unit.policy.ranks import Place


def configured(place: Place, fields: dict[str, Any]) -> tuple[int, int]:
    """The provider's (local, global) layers in turn, for a model of these fields."""
    from megatron.bridge.models.gemma.gemma3_provider import Gemma3ModelProvider

    from nemo_rl.policy.megatron.gemma3 import configure_gemma3

    provider = Gemma3ModelProvider(num_layers=4, hidden_size=64, num_attention_heads=4)
    configure_gemma3(provider, Gemma3TextConfig(num_hidden_layers=4, **fields))
    pattern: tuple[int, int] = provider.interleaved_attn_pattern
    return pattern


def windowed(place: Place) -> None:
    """The attention of a model whose window Megatron-Core itself knows."""
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    from nemo_rl.policy.megatron.local_spec import LocalAttention

    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, window_size=(7, 0))
    LocalAttention(config, 1, AttnMaskType.causal, "self")
