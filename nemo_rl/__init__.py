"""Reinforcement learning for language models: LoRA on Megatron, rolled out by vLLM, orchestrated by Ray."""
