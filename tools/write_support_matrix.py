"""Measures architecture x layout and writes docs/support-matrix.md.

uv run tools/write_support_matrix.py [ARCHITECTURE ...]    about 30 minutes on 2 cores, all architectures

Rows of architectures that are not named stay as they are.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.unit.policy.jobs import PEFT  # noqa: E402
from tests.unit.policy.matrix import ARCHITECTURES, COLUMNS, MATRIX_LAYOUTS, SETTINGS, Cell, Matrix  # noqa: E402
from tests.unit.policy.ranks import RankPool  # noqa: E402

PAGE = ROOT / "docs" / "support-matrix.md"
LIMIT = 1e-4
HEAD = """# What merges, trains, saves and exports right

Measured by `tools/write_support_matrix.py` on CPU in float32, with tiny random models of the real architectures and
LoRA (rank 8, B not zero) on every linear of the layers. Not written by hand.

- **forward**: largest difference between the trainer's log-probabilities with live adapters and Hugging Face's of the
  merged export.
- **gradient**: largest difference of any gradient of A or B from one rank's, relative to the largest entry of that
  matrix.
- **adapter export**: as forward, for the exported adapter opened by `peft` on the base.
- **reload**: largest relative difference of adapters after saving at this layout and loading them on one rank.
- **engine**: as forward, for vLLM after a real weight sync, on tokens that it sampled itself (`tools/verify_refit.py`).

| architecture | layout | forward | gradient | adapter export | reload | engine |
|---|---|---|---|---|---|---|
"""


def main(names: list[str]) -> int:
    measured: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        pool = RankPool(Path(folder))
        matrix = Matrix(pool, Path(folder))
        for name in names:
            measured[name], notes[name] = [], []
            for layout in MATRIX_LAYOUTS:
                if "ep2" in layout and "moe" not in name:
                    continue
                cell = matrix.cell(name, layout)
                engine = 0.0
                if cell.refusal is None:
                    engine = engine_difference(matrix.models[name], name, layout, Path(folder) / "refit.json")
                row = _row(ARCHITECTURES[name], layout, cell, engine)
                measured[name].append(row)
                print(row, flush=True)
                if cell.refusal is not None:
                    notes[name].append(f"- {ARCHITECTURES[name]}, {layout}: {cell.refusal}")
                elif not max(*cell.values.values(), engine) < LIMIT:
                    wrong.append(row)
        pool.close()
    rows, refusals = _with_others(measured, "| {} |"), _with_others(notes, "- {}, ")
    refused = "\n## Refused, and why\n\n" + "\n".join(refusals) + "\n" if refusals else ""
    PAGE.write_text(HEAD + "\n".join(rows) + "\n" + refused, encoding="utf-8")
    print(f"wrote {PAGE}")
    for row in wrong:
        print(f"differs by more than {LIMIT}: {row}", file=sys.stderr)
    return 1 if wrong else 0


def _with_others(lines: dict[str, list[str]], start: str) -> list[str]:
    """The new lines, and of architectures that were not measured now those that the page has."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        line
        for name, title in ARCHITECTURES.items()
        for line in lines.get(name, [old for old in page if old.startswith(start.format(title))])
    ]


def engine_difference(model: str, architecture: str, layout: str, file: Path) -> float:
    """Largest difference between the engine's log-probabilities and the trainer's; infinite if tensors differ."""
    world, overrides = MATRIX_LAYOUTS[layout]
    settings = [f"policy.model_name={model}", f"cluster.gpus_per_node={world}", f"{PEFT}.dim=8"]
    settings += [*overrides, *SETTINGS.get(architecture, [])]
    command = [sys.executable, str(ROOT / "tools" / "verify_refit.py"), "--syncs", "2", "--json", str(file), *settings]
    done = subprocess.run(command, check=False, cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        return math.inf
    return float(json.loads(file.read_text())["agreement"]["max_abs_logprob_error"])


def _row(architecture: str, layout: str, cell: Cell, engine: float) -> str:
    if cell.refusal is not None:
        return f"| {architecture} | {layout} |{' refused |' * (len(COLUMNS) + 1)}"
    values = [f"{value:.1e}" for value in (*(cell.values[column] for column in COLUMNS), engine)]
    return f"| {architecture} | {layout} | {' | '.join(values)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(ARCHITECTURES)))
