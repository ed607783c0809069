"""Layer spec without transformer-engine: Megatron's own layers with a norm and an attention that know SP, thd and CP.

Megatron's stock local spec refuses sequence parallelism, packed (thd) rows and context parallelism; its linears are
fine. These two small modules are what is missing. Shapes follow Megatron: [s, b, h, d], packed rows [t, h, d].
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_rl.data.packed_layout import zigzag_indices


def local_block_spec(config: TransformerConfig, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """The transformer block of this pipeline stage, layers and final norm, for RMSNorm decoder models."""
    layers = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[_layer_spec(config)] * layers, layer_norm=LocalRMSNorm)


def _layer_spec(config: TransformerConfig) -> ModuleSpec:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = LocalRMSNorm
    attention = layer.self_attention.submodules
    attention.core_attention = LocalAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = LocalRMSNorm
    return spec


class LocalRMSNorm(torch.nn.RMSNorm):
    """RMSNorm whose weight gradient is summed over tensor ranks when activations are sequence-parallel."""

    zero_centred = False

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        if config.normalization != "RMSNorm" or config.layernorm_zero_centered_gamma != self.zero_centred:
            raise ValueError(
                f"the CPU layer spec has plain RMSNorm only; this model wants normalization={config.normalization}, "
                f"zero-centred gamma={config.layernorm_zero_centered_gamma}: train it on a GPU"
            )
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class LocalAttention(torch.nn.Module):
    """Causal scaled-dot-product attention over padded or packed rows, context-parallel by gathering keys and values."""

    window: int | None = None
    """How many positions a token sees, itself included; None: all before it."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        if getattr(config, "window_size", None) is not None:
            raise ValueError(
                "the CPU layer spec has no sliding-window attention; train this model on a GPU, with transformer-engine"
            )
        self.scale = softmax_scale
        self.cp_group = parallel_state.get_context_parallel_group() if config.context_parallel_size > 1 else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        if packed_seq_params is not None:
            bounds = packed_seq_params.cu_seqlens_q.tolist()
            return self._packed(query, key, value, bounds)
        out = self._causal(query, key, value)
        return out.reshape(out.shape[0], out.shape[1], -1)

    def _packed(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: list[int]) -> torch.Tensor:
        ranks = 1 if self.cp_group is None else self.cp_group.size()
        pieces = [
            self._causal(query[a:b, None], key[a:b, None], value[a:b, None])[:, 0]
            for start, end in pairwise(bounds)
            for a, b in [(start // ranks, end // ranks)]
            if b > a
        ]
        return torch.cat(pieces).reshape(query.shape[0], -1)

    def _causal(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """One causal attention [s, b, h, d]; with context parallelism s is this rank's zig-zag share."""
        if self.cp_group is None and self.window is None:
            return self._attend(query, key, value, is_causal=True)
        queries = keys = torch.arange(query.shape[0])
        if self.cp_group is not None:
            size, rank = self.cp_group.size(), self.cp_group.rank()
            length = query.shape[0] * size
            key, value = _GatherContext.apply(key, self.cp_group), _GatherContext.apply(value, self.cp_group)
            queries = zigzag_indices(length, size, rank)
            keys = torch.cat([zigzag_indices(length, size, r) for r in range(size)])
        visible = keys[None] <= queries[:, None]
        if self.window is not None:
            visible &= keys[None] > queries[:, None] - self.window
        return self._attend(query, key, value, attn_mask=visible)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any) -> torch.Tensor:
        grouped = query.shape[2] != key.shape[2]
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scale, enable_gqa=grouped, **how)
        return out.permute(2, 0, 1, 3)


class _GatherContext(torch.autograd.Function):
    """Concatenate the sequence shares of all context ranks; gradients are summed back to their owners."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        shares = [torch.empty_like(share) for _ in range(group.size())]
        torch.distributed.all_gather(shares, share.contiguous(), group=group)
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].contiguous().clone()
        torch.distributed.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[ctx.group.rank()], None
