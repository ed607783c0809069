"""NeMo-RL's published key sets: every key is used, off, or refused with a reason; the whole loads after few changes."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from nemo_rl.config import ConfigError, load_config
from nemo_rl.config.tree import get
from tests.examples import ROOT


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compatibility", ROOT / "tools" / "nemo_rl_compatibility.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = tool()
SETS = list(TOOL.SETS)


def written(folder: Path, keys: dict[str, Any]) -> Path:
    """The keys as a nested YAML file."""
    path = folder / "published.yaml"
    path.write_text(yaml.safe_dump(TOOL.tree_of(keys)))
    return path


@pytest.mark.parametrize("name", SETS)
def test_every_key_is_known_and_what_is_not_used_has_a_reason(name: str) -> None:
    outcomes = list(TOOL.outcomes(name))
    assert [o.key for o in outcomes] == list(TOOL.key_set(name))
    assert [o.key for o in outcomes if o.status != "used" and not o.reason] == []


@pytest.mark.parametrize("name", SETS)
def test_published_file_loads_with_the_documented_changes(name: str, tmp_path: Path) -> None:
    changes = {key: value for key, (value, _) in TOOL.CHANGES[name].items()}
    keys = TOOL.key_set(name) | changes
    config = load_config(written(tmp_path, keys), root=TOOL.SETS[name])
    dumped = config.model_dump(mode="json")
    used = [o.key for o in TOOL.outcomes(name) if o.status == "used"]
    plain = {key: keys[key] for key in used if not (isinstance(keys[key], str) and keys[key].startswith("${"))}
    assert {key: get(dumped, key, "absent") for key in plain} == plain


@pytest.mark.parametrize("name", SETS)
def test_each_documented_change_is_needed(name: str, tmp_path: Path) -> None:
    changes = {key: value for key, (value, _) in TOOL.CHANGES[name].items()}
    for key in changes.keys() - {"data.default.prompt_file"}:  # that file is only looked for when prompts are made
        others = {other: value for other, value in changes.items() if other != key}
        with pytest.raises(ConfigError, match=key):
            load_config(written(tmp_path, TOOL.key_set(name) | others), root=TOOL.SETS[name])


def test_page_is_up_to_date() -> None:
    assert TOOL.PAGE.read_text() == TOOL.page(), "run tools/nemo_rl_compatibility.py"
