"""One training rank: a Ray actor that holds a shard of the policy. It receives, calls a module, returns."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_rl.config.schema import WorkerConfig
from nemo_rl.policy.megatron.cpu_shim import install as install_cpu_shim
from nemo_rl.utils.logging_setup import setup_worker_logging

logger = logging.getLogger(__name__)


class MegatronPolicyWorker:
    """All methods are collective over the training ranks unless they say otherwise."""

    def __init__(self, config: WorkerConfig, model_path: str, rank: int, world: int) -> None:
        setup_worker_logging(f"policy {rank}")
        self.config, self.model_path, self.rank, self.world = config, model_path, rank, world
        self.stream: Any = None
        self.sender: Any = None
        self.store: Any = None

    def node(self) -> dict[str, Any]:
        """Not collective: where this rank lives."""
        import ray

        context = ray.get_runtime_context()
        return {"node_id": context.get_node_id(), "ip": ray.util.get_node_ip_address(), "gpu_ids": ray.get_gpu_ids()}

    def prepare(self) -> None:
        """Not collective: the slow imports, while the engines start."""
        install_cpu_shim()
        import nemo_rl.policy.megatron.model  # noqa: F401

    def open_store(self) -> int:
        """Not collective, rank 0 of a multi-node run: serve the rendezvous, on a port that the system picks."""
        import torch

        self.store = torch.distributed.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        return int(self.store.port)

    def build(self, rendezvous: str) -> dict[str, Any]:
        """Join the training ranks ("file://..." or "host:port"), build model, optimizer and sender."""
        install_cpu_shim()
        import torch

        from nemo_rl.policy.megatron.distributed import join_training_ranks
        from nemo_rl.policy.megatron.model import build_policy_model, initialise_parallel_state
        from nemo_rl.policy.megatron.offload import PolicyMemory
        from nemo_rl.policy.megatron.optimizer import build_optimization
        from nemo_rl.policy.megatron.reference import ReferenceKind, ReferencePolicy
        from nemo_rl.utils.checkpoint_files import megatron_checkpoint

        policy, seed, base = self.config.policy, self.config.seed, self.config.checkpointing.pretrained_checkpoint
        join_training_ranks(
            rendezvous,
            self.rank,
            self.world,
            self.store,
            share_cores=self.config.engine_works_meanwhile,
            one_node=self.config.cluster.num_nodes == 1,
        )
        initialise_parallel_state(policy, seed)
        self.model = build_policy_model(
            policy, self.model_path, seed, None if base is None else megatron_checkpoint(base)
        )
        self._load_starting_adapters()
        self.optimization = build_optimization(self.model, policy)
        self.memory = PolicyMemory(self.model, self.optimization)
        self.reference = ReferencePolicy(self.model, ReferenceKind(self.config.checkpointing.reference))
        self.layout = self.row_layout()
        return self.model.sizes() | {"threads": torch.get_num_threads()}

    def row_layout(self) -> Any:
        from nemo_rl.policy.megatron.forward import RowLayout

        policy = self.config.policy
        return RowLayout(
            packed=policy.sequence_packing.enabled,
            divisible_by=policy.make_sequence_length_divisible_by,
            line_divisible_by=policy.sequence_packing.sequence_length_round,
            temperature=self.config.temperature,
            logits_chunk=policy.logprob_chunk_size,
        )

    def _load_starting_adapters(self) -> None:
        if self.config.checkpointing.adapter_path is not None:
            from nemo_rl.policy.megatron.peft_folder import load_peft_folder

            load_peft_folder(self.model, Path(self.config.checkpointing.adapter_path))

    def train(self, micro_batches: Sequence[Any], loss: Any, normalizer: Any) -> dict[str, Any]:
        """One optimizer step over this rank's micro-batches. Metric sums are filled on last-stage ranks only."""
        from nemo_rl.policy.megatron.forward import run_schedule

        def on_rows(logprobs_BT: Any, rows: Any) -> tuple[Any, Any]:
            return loss(logprobs_BT, rows.to(logprobs_BT.device), normalizer)

        self.memory.require("training")
        rates = None
        while rates is None:
            for chunk in self.model.chunks:
                chunk.zero_grad_buffer()
            collected = run_schedule(
                self.model.chunks, micro_batches, self.layout, self.model.vocab_size, on_rows, forward_only=False
            )
            rates = self.optimization.step()
        return {"sums": [sums.to_host() for sums in collected], **rates}

    def logprobs(self, micro_batches: Sequence[Any], reference: bool = False) -> list[Any]:
        """Log-probabilities [b, t] of each micro-batch, of the live policy or the reference; [] off the last stage."""
        from contextlib import nullcontext

        from nemo_rl.policy.megatron.forward import run_schedule

        def on_rows(logprobs_BT: Any, rows: Any) -> tuple[Any, Any]:
            return logprobs_BT.sum() * 0.0, logprobs_BT.cpu()

        self.memory.require("a forward pass")
        self.model.settle()
        with self.reference.active() if reference else nullcontext():
            return run_schedule(
                self.model.chunks, micro_batches, self.layout, self.model.vocab_size, on_rows, forward_only=True
            )

    def logprob_arrays(self, micro_batches: Sequence[Any], reference: bool = False) -> list[Any]:
        """`logprobs` as numpy arrays: pickled here, a tensor would make whoever reads it import Megatron."""
        return [logprobs_BT.numpy() for logprobs_BT in self.logprobs(micro_batches, reference)]

    def open_sender(self, factory: str, settings: dict[str, Any]) -> None:
        """Make this rank's end of the weight transport: "module:function" with `settings`. Closes an earlier one."""
        import importlib

        if self.sender is not None:
            self.sender.close()
        module, _, function = factory.partition(":")
        self.sender = getattr(importlib.import_module(module), function)(rank=self.rank, **settings)

    def begin_export(self, version: int, bucket_bytes: int, checksums: bool) -> None:
        from nemo_rl.policy.megatron.export import merged_weights
        from nemo_rl.weight_sync.buckets import BucketStream

        self.memory.require("a weight sync")
        self.model.settle()
        self.stream = BucketStream(merged_weights(self.model), self.sender, version, bucket_bytes, checksums)

    def next_bucket(self) -> Any:
        """Fill the next bucket; None when all weights have been handed out."""
        return self.stream.next()

    def send_bucket(self, bucket: Any) -> None:
        self.sender.send(bucket)

    def end_export(self) -> None:
        self.stream = None
        self.sender.finish()

    def offload(self, phase: str) -> None:
        """Not collective: give device memory back, see PolicyMemory."""
        self.memory.offload(phase)

    def onload(self) -> None:
        """Not collective: take it again."""
        self.memory.onload()

    def merge_retention(self) -> dict[str, float]:
        from nemo_rl.policy.megatron.export import merge_retention

        self.memory.require("a look at the weights")
        self.model.settle()
        return merge_retention(self.model) if self.model.adapters is not None else {}

    def draw_adapters(self, seed: int) -> None:
        """Replace the adapters by random ones, B not zero: for checks of the weight sync. Nothing without adapters."""
        from nemo_rl.policy.megatron.lora import initialise_adapters

        if self.model.adapters is not None:
            drawn = self.config.policy.megatron_cfg.peft.model_copy(update={"lora_B_init_method": "xavier"})
            initialise_adapters(self.model.adapters, drawn, seed)

    def base_fingerprint(self) -> str:
        """Not collective."""
        from nemo_rl.policy.megatron.export import base_fingerprint

        self.memory.require("the base's fingerprint")
        return base_fingerprint(self.model)

    def save(self, folder: str) -> None:
        from nemo_rl.policy.megatron.checkpoint import save_policy

        self.memory.require("a checkpoint")
        self.model.settle()
        save_policy(self.model, self.optimization, Path(folder))

    def load(self, folder: str) -> None:
        from nemo_rl.policy.megatron.checkpoint import load_policy

        load_policy(self.model, self.optimization, Path(folder))

    def load_weights(self, folder: str) -> None:
        """Trainable weights of a checkpoint, without the optimizer's state."""
        from nemo_rl.policy.megatron.checkpoint import load_weights

        load_weights(self.model, Path(folder))

    def save_adapter(self, folder: str) -> None:
        """Write a PEFT folder (adapter_config.json, adapter_model.safetensors)."""
        from nemo_rl.policy.megatron.peft_folder import save_peft_folder

        self.memory.require("a PEFT folder")
        self.model.settle()
        save_peft_folder(self.model, Path(folder), self.model_path)

    def save_merged(self, folder: str) -> None:
        """Write a Hugging Face folder of the merged model."""
        from nemo_rl.policy.megatron.export import save_merged_folder

        self.memory.require("a merged folder")
        self.model.settle()
        save_merged_folder(self.model, Path(folder))

    def memory_gib(self) -> dict[str, float]:
        """Not collective."""
        from nemo_rl.utils.process_memory import memory_gib

        return memory_gib()

    def shutdown(self) -> None:
        import torch

        if self.sender is not None:
            self.sender.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
