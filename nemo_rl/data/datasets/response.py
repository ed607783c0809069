"""Question/answer tables: which columns hold the problem and the ground truth, per known dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nemo_rl.data.datasets.tables import Row, column, read_hub, read_local
from nemo_rl.data.errors import DataError
from nemo_rl.data.settings import DatasetSettings, Record


@dataclass(frozen=True)
class TableFormat:
    """How to read one family of tables; `hub_id` is where it lives when no local path is given."""

    hub_id: str
    input_key: str
    output_key: str
    subset: str | None = None
    split: str = "train"
    test_split: str = "test"
    ground_truth: Callable[[str], str] = str.strip


def gsm8k_ground_truth(solution: str) -> str:
    """The number after the last '####' of a GSM8K solution, without thousands separators."""
    _, mark, answer = solution.rpartition("####")
    if not mark or not answer.strip():
        raise DataError(f"a GSM8K solution must end in '#### <number>', this one does not: {solution[-80:]!r}")
    return answer.strip().replace(",", "")


FORMATS = {
    "gsm8k": TableFormat("openai/gsm8k", "question", "answer", subset="main", ground_truth=gsm8k_ground_truth),
    "OpenMathInstruct-2": TableFormat("nvidia/OpenMathInstruct-2", "problem", "expected_answer", split="train_1M"),
    "DeepScaler": TableFormat("agentica-org/DeepScaleR-Preview-Dataset", "problem", "answer"),
    "AIME2024": TableFormat("HuggingFaceH4/aime_2024", "problem", "answer", test_split="train"),
}


def default_split(name: str, part: str, *, local: bool) -> str:
    """What is taken as the "train" or "test" part of a dataset where no split is named; local files have just these."""
    table = next((table for key, table in FORMATS.items() if name in (key, table.hub_id)), None)
    if table is None or local:
        return part
    return table.split if part == "train" else table.test_split


def format_records(name: str, settings: DatasetSettings) -> Iterator[Record]:
    """Problems of a known table, from `data_path` if given and from the Hub otherwise."""
    table = FORMATS[name]
    split = settings.split or table.split
    if settings.data_path is not None:
        rows = read_local(settings, settings.data_path, split)
    else:
        rows = read_hub(settings, table.hub_id, settings.subset or table.subset, split)
    yield from _records(rows, f"{name}-{split}", table, settings)


def table_records(settings: DatasetSettings, rows: Iterator[Row], source: str) -> Iterator[Record]:
    """Problems of any table, by the columns `input_key` and `output_key`."""
    yield from _records(rows, source, plain_table(source), settings)


def plain_table(source: str) -> TableFormat:
    """A table that nothing is known about."""
    return TableFormat(source, "input", "output")


def _records(rows: Iterator[Row], source: str, table: TableFormat, settings: DatasetSettings) -> Iterator[Record]:
    for index, row in enumerate(rows):
        problem = column(row, settings.input_key or table.input_key, settings, "input_key")
        truth = str(column(row, settings.output_key or table.output_key, settings, "output_key"))
        try:
            metadata = {"ground_truth": table.ground_truth(truth)}
        except DataError as error:
            raise DataError(f"{settings}, row {index}: {error}") from error
        yield Record(f"{source}:{index}", str(problem), metadata, settings.env_name or "math")
