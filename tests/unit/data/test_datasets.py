"""Datasets by name: local files with key mapping, known formats, generated tasks, and what can be wrong with them."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from nemo_rl.data.datasets import load_records, load_splits, register_dataset
from nemo_rl.data.datasets.response import default_split, gsm8k_ground_truth
from nemo_rl.data.errors import DataError
from nemo_rl.data.settings import DatasetSettings, Record

ROWS = [{"q": "2+2?", "a": "4"}, {"q": "3,000+1?", "a": "3,001"}]
GSM8K = [
    {"question": "Six boxes of 200 pens?", "answer": "6*200 = <<6*200=1200>>1,200 pens\n#### 1,200"},
    {"question": "Half of 144?", "answer": "144/2 = 72\n#### 72"},
]


def write_rows(path, rows):
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv":
            path.write_text("q,a\n" + "".join(f'"{row["q"]}","{row["a"]}"\n' for row in rows))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv", "parquet"])
def test_local_file_with_key_mapping(tmp_path, extension):
    path = write_rows(tmp_path / f"mine.{extension}", ROWS)
    by_name = load_records(DatasetSettings(str(path), input_key="q", output_key="a"))
    by_path = load_records(DatasetSettings("ResponseDataset", data_path=path, input_key="q", output_key="a"))
    assert by_name == by_path
    assert by_name[0] == Record("mine:0", "2+2?", {"ground_truth": "4"}, "math")
    assert by_name[1].row_id == "mine:1" and by_name[1].metadata["ground_truth"] == "3,001"


def test_brackets_in_a_path_are_no_pattern(tmp_path):
    (tmp_path / "run[1]*").mkdir()
    path = write_rows(tmp_path / "run[1]*" / "a[b].jsonl", ROWS)
    assert len(load_records(DatasetSettings(str(path), input_key="q", output_key="a"))) == 2


def test_size_limits_the_rows_of_a_file(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", ROWS)
    assert len(load_records(DatasetSettings(str(path), input_key="q", output_key="a", size=1))) == 1


def test_changed_file_is_read_anew(tmp_path):
    path = tmp_path / "mine.jsonl"
    settings = DatasetSettings(str(path), input_key="q", output_key="a")
    write_rows(path, ROWS)
    load_records(settings)
    write_rows(path, [{"q": "new?", "a": "yes"}])
    assert [record.problem for record in load_records(settings)] == ["new?"]


def test_gsm8k_folder_takes_the_split_and_the_number_after_the_hashes(tmp_path):
    write_rows(tmp_path / "train.jsonl", GSM8K)
    write_rows(tmp_path / "test.jsonl", GSM8K[1:])
    train = load_records(DatasetSettings("gsm8k", data_path=tmp_path))
    test = load_records(DatasetSettings("openai/gsm8k", data_path=tmp_path, split="test"))
    assert [record.metadata["ground_truth"] for record in train] == ["1200", "72"]
    assert train[0].row_id == "gsm8k-train:0"
    assert [record.row_id for record in test] == ["gsm8k-test:0"]


def test_columns_of_a_known_table_can_be_named(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", ROWS)
    records = load_records(DatasetSettings("DeepScaler", data_path=path, input_key="q", output_key="a"))
    assert [(record.problem, record.metadata["ground_truth"]) for record in records] == [
        (row["q"], row["a"]) for row in ROWS
    ]


@pytest.mark.parametrize(("name", "part", "local", "split"), [
    ("OpenMathInstruct-2", "train", False, "train_1M"), ("nvidia/OpenMathInstruct-2", "train", False, "train_1M"),
    ("OpenMathInstruct-2", "train", True, "train"), ("AIME2024", "test", False, "train"),
    ("gsm8k", "test", False, "test"), ("someone/else", "test", False, "test"), ("tiny_max", "train", False, "train"),
])  # fmt: skip
def test_split_where_none_is_named(name, part, local, split):
    assert default_split(name, part, local=local) == split


def test_gsm8k_solution_without_hashes_is_refused():
    with pytest.raises(DataError, match="must end in '####"):
        gsm8k_ground_truth("so it is 72")


@pytest.mark.parametrize(
    ("name", "row", "truth"),
    [
        (
            "OpenMathInstruct-2",
            {"problem": "p", "expected_answer": r"\frac12", "generated_solution": "long"},
            r"\frac12",
        ),
        ("DeepScaler", {"problem": "p", "answer": "-3", "solution": "long"}, "-3"),
    ],
)
def test_known_tables_from_a_local_copy(tmp_path, name, row, truth):
    path = write_rows(tmp_path / "copy.jsonl", [row])
    (record,) = load_records(DatasetSettings(name, data_path=path))
    assert (record.problem, record.metadata, record.env_name) == ("p", {"ground_truth": truth}, "math")


def test_reasoning_gym_by_either_spelling_is_the_same_and_seeded():
    params = {"min_terms": 2, "max_terms": 2}
    short = load_records(DatasetSettings("reasoning_gym:chain_sum", size=5, seed=1, task_params=params))
    spelled = DatasetSettings("reasoning_gym", size=5, seed=1, task_params={"task": "chain_sum", **params})
    other = load_records(DatasetSettings("reasoning_gym:chain_sum", size=5, seed=2, task_params=params))
    assert short == load_records(spelled)
    assert [record.problem for record in short] != [record.problem for record in other]
    assert short[0].env_name == "reasoning_gym"
    assert short[0].metadata["entry"]["metadata"]["num_terms"] == 2


def test_tiny_max_rows_are_different_and_right():
    records = load_records(DatasetSettings("tiny_max", size=5040))
    assert len({record.problem for record in records}) == 5040
    assert all(record.metadata["ground_truth"] == max(record.problem.split()) for record in records)


def test_env_name_can_be_chosen():
    (record,) = load_records(DatasetSettings("tiny_max", size=1, env_name="mine"))
    assert record.env_name == "mine"


@pytest.mark.parametrize(("size", "count"), [(0.25, 25), (10, 10), (0, 0)])
def test_split_takes_each_row_once_and_is_the_same_again(size, count):
    settings = DatasetSettings("tiny_max", size=100, split_validation_size=size)
    train, validation = load_splits(settings)
    assert len(validation) == count
    assert sorted(r.row_id for r in train + validation) == sorted(r.row_id for r in load_records(settings))
    assert load_splits(settings) == (train, validation)


def test_registered_dataset_is_found():
    register_dataset("made_by_test", lambda settings: iter([Record("made:0", "p", {}, "exact_match")]))
    assert load_records(DatasetSettings("made_by_test"))[0].problem == "p"
    with pytest.raises(ValueError, match="already registered"):
        register_dataset("made_by_test", lambda settings: iter([]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (DatasetSettings("gsm9k"), "did you mean 'gsm8k'"),
        (DatasetSettings("no/such/file.jsonl"), "no/such/file.jsonl does not exist"),
        (DatasetSettings("gsm8k", data_path=Path("no/such")), "no/such does not exist"),
        (DatasetSettings("ResponseDataset"), "needs data.train.data_path"),
        (DatasetSettings("reasoning_gym"), "needs a task"),
        (DatasetSettings("reasoning_gym:chainsum"), "did you mean 'chain_sum'"),
        (DatasetSettings("reasoning_gym:chain_sum", task_params={"min_term": 2}), "did you mean 'min_terms'"),
        (DatasetSettings("reasoning_gym:chain_sum", task_params={"min_terms": 9}), "max_terms must be >= min_terms"),
        (DatasetSettings("tiny_max", size=6000), "has 5040 different problems"),
        (DatasetSettings("guess_number", task_params={"low": 3, "high": 3}), "needs low < high"),
        (
            DatasetSettings("guess_number", task_params={"high": "x"}),
            "task_params.high must be a whole number, found 'x'",
        ),
        (DatasetSettings("reasoning_gym:chain_sum", task_params={"min_terms": "2"}), r"task_params \(min_terms='2'\)"),
        (DatasetSettings("gsm9k", key="data.validation"), "data.validation.dataset_name=gsm9k is not a dataset"),
        (DatasetSettings("tiny_max", size=10, split_validation_size=10), "takes 10 of the 10 rows"),
        (DatasetSettings("tiny_max", split_validation_size=-1), "must not be negative"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, message):
    with pytest.raises(DataError, match=message) as caught:
        load_splits(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", "\n", "has no rows"),
        ("a.jsonl", '{"q": 1\n', "cannot be read as json: line 1 is not JSON"),
        (
            "a.jsonl",
            '{"q": "x", "a": "y"}\n\n{"q": "x", "a": "y"}\n{"q": \n',
            r"a.jsonl cannot be read .* line 4 is not",
        ),
        ("a.jsonl", '{"q": "x", "a": "y"}\n[1]\n', "line 2 is a list where an object is expected"),
        ("a.parquet", "garbage", "cannot be read as parquet"),
        (
            "a.jsonl",
            '{"question": "x", "a": "y"}\n',
            r"^data.train \(.*a.jsonl\) has no column 'q' \(setting data.train.input_key\)",
        ),
        ("a.jsonl", '{"q": "x", "aa": "y"}\n', "did you mean 'aa'"),
        ("a.jsonl", '{"q": "x", "a": null}\n', "row whose column 'a' .* is empty"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_records(DatasetSettings(str(tmp_path / file), input_key="q", output_key="a"))
    assert "\n" not in str(caught.value)


def test_folder_without_the_split_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no file validation.jsonl"):
        load_records(DatasetSettings("gsm8k", data_path=tmp_path, split="validation"))


def test_unreachable_hub_is_one_sentence(monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nafter 5 retries")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match="neither a local file nor reachable") as caught:
        load_records(DatasetSettings("someone/something"))
    assert "\n" not in str(caught.value)
