"""Problem to tokens: prompt files, chat templates, the length filter."""

import logging

import pytest

from nemo_rl.data.errors import DataError
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import Record


def record(problem, index=0):
    return Record(f"test:{index}", problem, {"ground_truth": "4"}, "math")


def test_tokens_equal_transformers_own_rendering(tokenizer, tmp_path):
    (tmp_path / "system.txt").write_text("Be brief.\n")
    (tmp_path / "prompt.txt").write_text("Solve in \\boxed{{}}: {}\n")
    builder = PromptBuilder(tokenizer, 200, tmp_path / "prompt.txt", tmp_path / "system.txt")
    prompt = builder.prompt(record("2+2={x}"))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Solve in \\boxed{}: 2+2={x}"},
    ]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(prompt.messages) == messages
    assert list(prompt.token_ids) == expected
    assert (prompt.prompt_id, prompt.env_name, prompt.metadata) == ("test:0", "math", {"ground_truth": "4"})


def test_chat_template_kwargs_reach_the_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0]['content'] }}{% if think %}?{% endif %}")
    plain = PromptBuilder(tokenizer, 10).prompt(record("hm"))
    thinking = PromptBuilder(tokenizer, 10, chat_template_kwargs={"think": True}).prompt(record("hm"))
    assert tokenizer.decode(plain.token_ids) == "hm"
    assert tokenizer.decode(thinking.token_ids) == "hm?"


def test_too_long_prompts_are_left_out_and_counted(tokenizer, caplog):
    builder = PromptBuilder(tokenizer, max_input_seq_length=3 + 5)  # user, end, assistant + five characters
    with caplog.at_level(logging.WARNING):
        prompts = builder.build([record("12345", 0), record("123456", 1), record("1", 2)])
    assert [prompt.prompt_id for prompt in prompts] == ["test:0", "test:2"]
    assert "left out 1 of 3 prompts" in caplog.text


def test_nothing_left_is_an_error(tokenizer):
    with pytest.raises(DataError, match=r"all 1 are longer .*=4 tokens \(the shortest has 8\)"):
        PromptBuilder(tokenizer, 4).build([record("12345")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no place", "needs exactly one '{}'.* has 0"),
        ("{} and {}", "needs exactly one '{}'.* has 2"),
        ("{problem}", "needs exactly one"),
        ("in \\boxed{}: {}", r"write '\{\{' and '\}\}' for literal braces"),
        ("stray } {}", "stray brace"),
    ],
)
def test_wrong_prompt_file_is_one_sentence(tokenizer, tmp_path, text, message):
    (tmp_path / "prompt.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        PromptBuilder(tokenizer, 10, tmp_path / "prompt.txt")


def test_missing_prompt_file_is_one_sentence(tokenizer, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        PromptBuilder(tokenizer, 10, system_prompt_file=tmp_path / "nothing.txt")
