"""Models with experts, whose layouts have rules of their own: cells of docs/support-matrix.md measured again."""

import re
from pathlib import Path

import pytest

from tests.unit.policy.matrix import ARCHITECTURES, COLUMNS, MATRIX_LAYOUTS, Matrix

PAGE = Path(__file__).parents[3] / "docs" / "support-matrix.md"
LIMIT = 1e-4


@pytest.fixture(scope="module")
def matrix(pool, tmp_path_factory):
    return Matrix(pool, tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize(("architecture", "layout"), [
    ("qwen3_moe", "tp2-sp"), ("qwen3_moe", "tp2-sp-ep2"), ("qwen3_moe_attention", "ep2"),
])  # fmt: skip
def test_experts_merge_train_export_and_reload_right(matrix, architecture, layout):
    assert matrix.cell(architecture, "single").refusal is None
    cell = matrix.cell(architecture, layout)
    assert cell.refusal is None
    assert max(cell.values.values()) < LIMIT, cell.values


def test_page_has_every_cell_and_none_that_is_wrong():
    rows = re.findall(r"^\| (.+?) \| ([a-z0-9-]+) \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    rows = [row for row in rows if row[0] != "architecture"]
    found = {(architecture, layout) for architecture, layout, _ in rows}
    expected = {
        (title, layout)
        for name, title in ARCHITECTURES.items()
        for layout in MATRIX_LAYOUTS
        if "moe" in name or "ep2" not in layout
    }
    assert found == expected
    cells = [value for _, _, values in rows for value in values.split(" | ")]
    measured = [float(value) for value in cells if value not in ("refused", "-")]
    assert len(measured) > 100 and max(measured) < LIMIT
    assert all(len(values.split(" | ")) == len(COLUMNS) + 1 for _, _, values in rows)
    engine = {(architecture, layout) for architecture, layout, values in rows if values[-1].isdigit()}
    assert engine >= {(ARCHITECTURES[name], "single") for name in ("llama", "qwen2", "qwen3", "qwen3_moe")}
