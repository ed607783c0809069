"""Rules of devices, axes and pipeline stages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.layout import GenerationLayout, ParallelLayout

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig

_RESOURCES = "policy.generation.colocated.resources"


def resources_fit_the_cluster(config: "MasterConfig") -> Iterator[str]:
    """On one node generation takes a part of the devices; of several nodes it takes whole ones."""
    colocated, cluster = config.policy.generation.colocated, config.cluster
    gpus, nodes = colocated.resources.gpus_per_node, colocated.resources.num_nodes
    if colocated.enabled:
        if gpus is not None or nodes is not None:
            yield f"{_RESOURCES} has no effect while policy.generation.colocated.enabled is true; set that to false"
    elif cluster.num_nodes == 1:
        if gpus is None:
            yield f"{_RESOURCES}.gpus_per_node is required on one node when generation is not colocated"
        elif gpus >= cluster.gpus_per_node:
            yield (
                f"{_RESOURCES}.gpus_per_node={gpus} leaves the policy {cluster.gpus_per_node} - {gpus} = "
                f"{cluster.gpus_per_node - gpus} devices; it must be less than "
                f"cluster.gpus_per_node={cluster.gpus_per_node}"
            )
        if nodes not in (None, 1):
            yield f"{_RESOURCES}.num_nodes={nodes} must be 1 or null when cluster.num_nodes=1"
    elif nodes is None:
        yield (
            f"{_RESOURCES}.num_nodes is required when generation is not colocated and "
            f"cluster.num_nodes={cluster.num_nodes}"
        )
    elif nodes >= cluster.num_nodes:
        yield (
            f"{_RESOURCES}.num_nodes={nodes} leaves the policy {cluster.num_nodes - nodes} nodes; it must be less than "
            f"cluster.num_nodes={cluster.num_nodes}"
        )
    elif gpus != cluster.gpus_per_node:
        yield (
            f"{_RESOURCES}.gpus_per_node={gpus} must equal cluster.gpus_per_node={cluster.gpus_per_node}: on "
            "several nodes "
            "generation takes whole nodes"
        )


def axes_divide_the_devices(config: "MasterConfig") -> Iterator[str]:
    if list(resources_fit_the_cluster(config)):
        return
    for layout in (ParallelLayout, GenerationLayout):
        try:
            layout.from_config(config)
        except ValueError as error:
            yield str(error)


def sequence_parallel_needs_tensor_parallel(config: "MasterConfig") -> Iterator[str]:
    megatron = config.policy.megatron_cfg
    tp, ep = megatron.tensor_model_parallel_size, megatron.expert_model_parallel_size
    if megatron.sequence_parallel and tp == 1:
        yield (
            "policy.megatron_cfg.sequence_parallel=true needs tensor_model_parallel_size above 1, found 1; "
            "with one tensor-parallel rank there is nothing to split"
        )
    if tp > 1 and ep > 1 and not megatron.sequence_parallel:
        yield (
            f"policy.megatron_cfg.sequence_parallel must be true with tensor_model_parallel_size={tp} and "
            f"expert_model_parallel_size={ep}: Megatron's experts need it"
        )


def experts_divide_the_ranks(config: "MasterConfig") -> Iterator[str]:
    try:
        layout = ParallelLayout.from_config(config)
    except ValueError:
        return
    ranks = layout.tp * layout.cp * layout.dp
    if ranks % layout.ep:
        yield (
            f"policy.megatron_cfg.expert_model_parallel_size={layout.ep} must divide the ranks of a stage, "
            f"tensor x context x data = {layout.tp} x {layout.cp} x {layout.dp} = {ranks}"
        )


def uneven_stages_need_a_pipeline(config: "MasterConfig") -> Iterator[str]:
    megatron = config.policy.megatron_cfg
    for key in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"):
        if getattr(megatron, key) is not None and megatron.pipeline_model_parallel_size == 1:
            yield f"policy.megatron_cfg.{key} needs pipeline_model_parallel_size above 1, found 1"


def padding_suits_the_axes(config: "MasterConfig") -> Iterator[str]:
    """Sequence parallelism cuts rows into TP parts, context parallelism into 2 CP (pairs balance the mask)."""
    megatron, multiple = config.policy.megatron_cfg, config.policy.make_sequence_length_divisible_by
    tp, cp = megatron.tensor_model_parallel_size, megatron.context_parallel_size
    parts = (tp if megatron.sequence_parallel else 1) * (2 * cp if cp > 1 else 1)
    if multiple % parts:
        yield (
            f"policy.make_sequence_length_divisible_by={multiple} must be a multiple of {parts} "
            f"(tensor parallel {tp}{' with sequence_parallel' if megatron.sequence_parallel else ''}, context "
            f"parallel {cp}: "
            "rows are cut into that many parts)"
        )


def ddp_overlap_is_possible(config: "MasterConfig") -> Iterator[str]:
    megatron = config.policy.megatron_cfg
    ddp = megatron.distributed_data_parallel_config
    if ddp.overlap_param_gather and not (ddp.overlap_grad_reduce and megatron.optimizer.use_distributed_optimizer):
        yield (
            "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather=true needs "
            "overlap_grad_reduce=true "
            "and policy.megatron_cfg.optimizer.use_distributed_optimizer=true; set overlap_param_gather=false"
        )


def optimizer_and_kernels_exist(config: "MasterConfig") -> Iterator[str]:
    """What only Transformer Engine's GPU kernels can do."""
    megatron, key = config.policy.megatron_cfg, "policy.megatron_cfg.optimizer.use_precision_aware_optimizer"
    if megatron.optimizer.use_precision_aware_optimizer and not megatron.optimizer.use_distributed_optimizer:
        yield f"{key}=true needs policy.megatron_cfg.optimizer.use_distributed_optimizer=true"
    if config.cluster.accelerator == "cpu":
        gpu_only = {
            key: megatron.optimizer.use_precision_aware_optimizer,
            "policy.megatron_cfg.apply_rope_fusion": megatron.apply_rope_fusion,
            "policy.megatron_cfg.bias_activation_fusion": megatron.bias_activation_fusion,
        }
        for name in (name for name, wanted in gpu_only.items() if wanted):
            yield f"{name}=true needs a GPU, and cluster.accelerator=cpu; set it to false"


ENGINE_RULES = (resources_fit_the_cluster, axes_divide_the_devices)
TRAINER_RULES = (
    sequence_parallel_needs_tensor_parallel,
    experts_divide_the_ranks,
    uneven_stages_need_a_pipeline,
    padding_suits_the_axes,
    ddp_overlap_is_possible,
    optimizer_and_kernels_exist,
)
