"""Writes a Hugging Face checkpoint of a known shape with random weights, on the GPU if there is one.

python benchmarks/random_checkpoint.py qwen3-0.6b FOLDER
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from nemo_rl.utils.tiny_model import make_tiny_tokenizer

COMMON = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "vocab_size": 151936,
}
SHAPES: dict[str, dict[str, Any]] = {
    name: {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }
    for name, hidden, layers, heads, tied in [
        ("qwen3-0.6b", 1024, 28, 16, True),
        ("qwen3-1.7b", 2048, 28, 16, True),
        ("qwen3-8b", 4096, 36, 32, False),
    ]
}


def write_random_checkpoint(shape: str, folder: Path, seed: int = 0, *, shape_only: bool = False) -> None:
    """bfloat16 weights N(0, 0.02), norms 1, and the tiny character tokenizer (a small part of the vocabulary).

    `shape_only` leaves the weights out, for an engine that draws its own.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(**COMMON, **SHAPES[shape], eos_token_id=1, pad_token_id=0, bos_token_id=None)
    make_tiny_tokenizer().save_pretrained(folder)
    if shape_only:
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder)
        return
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape-only", action="store_true", help="configuration and tokenizer, no weights")
    arguments = parser.parse_args()
    write_random_checkpoint(arguments.shape, arguments.folder, shape_only=arguments.shape_only)
