"""Measures architecture x layout and writes docs/support-matrix.md.

uv run tools/write_support_matrix.py [ARCHITECTURE ...]    about 10 minutes on 2 cores, all architectures
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.unit.policy.matrix import ARCHITECTURES, COLUMNS, MATRIX_LAYOUTS, Cell, Matrix  # noqa: E402
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

| architecture | layout | forward | gradient | adapter export | reload |
|---|---|---|---|---|---|
"""


def main(names: list[str]) -> int:
    rows, notes, wrong = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        pool = RankPool(Path(folder))
        matrix = Matrix(pool, Path(folder))
        for name in names:
            for layout in MATRIX_LAYOUTS:
                if "ep2" in layout and "moe" not in name:
                    continue
                cell = matrix.cell(name, layout)
                rows.append(_row(ARCHITECTURES[name], layout, cell))
                print(rows[-1], flush=True)
                if cell.refusal is not None:
                    notes.append(f"- {ARCHITECTURES[name]}, {layout}: {cell.refusal}")
                elif not max(cell.values.values()) < LIMIT:
                    wrong.append(rows[-1])
        pool.close()
    refused = "\n## Refused, and why\n\n" + "\n".join(notes) + "\n" if notes else ""
    PAGE.write_text(HEAD + "\n".join(rows) + "\n" + refused, encoding="utf-8")
    print(f"wrote {PAGE}")
    for row in wrong:
        print(f"differs by more than {LIMIT}: {row}", file=sys.stderr)
    return 1 if wrong else 0


def _row(architecture: str, layout: str, cell: Cell) -> str:
    values = [f"{cell.values[column]:.1e}" if cell.refusal is None else "refused" for column in COLUMNS]
    return f"| {architecture} | {layout} | {' | '.join(values)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(ARCHITECTURES)))
