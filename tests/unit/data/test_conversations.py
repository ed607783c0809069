"""Which tokens of a conversation the model learns."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_rl.data.conversations import Conversation, ConversationEncoder
from nemo_rl.data.datasets.chat import load_conversations
from nemo_rl.data.errors import DataError
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import DatasetSettings, Record
from nemo_rl.utils.tiny_model import make_tiny_tokenizer

TWO_TURNS = (
    {"role": "user", "content": "3 8"},
    {"role": "assistant", "content": "8"},
    {"role": "user", "content": "4 1"},
    {"role": "assistant", "content": "4"},
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tiny_tokenizer()


def learnt(tokenizer: Any, example: Any) -> str:
    return tokenizer.decode([t for t, m in zip(example.token_ids, example.loss_mask, strict=True) if m])


def test_only_answers_and_their_end_tokens_are_learnt(tokenizer: Any) -> None:
    example = ConversationEncoder(tokenizer, 100).encode(Conversation("row", TWO_TURNS))
    assert learnt(tokenizer, example) == "8<|end|>4<|end|>"


def test_tokens_are_those_of_the_rendered_conversation(tokenizer: Any) -> None:
    example = ConversationEncoder(tokenizer, 100).encode(Conversation("row", TWO_TURNS))
    rendered = tokenizer.apply_chat_template([dict(m) for m in TWO_TURNS], tokenize=False)
    assert tokenizer.decode(example.token_ids) == rendered


def test_context_is_the_prompt_of_a_rollout(tokenizer: Any) -> None:
    messages = TWO_TURNS[:2]
    example = ConversationEncoder(tokenizer, 100).encode(Conversation("row", messages))
    prompt = PromptBuilder(tokenizer, 100).prompt(Record("row", "3 8", {}, "math"))
    assert example.token_ids[: example.loss_mask.index(True)] == prompt.token_ids


def test_end_token_is_added_where_the_template_has_none(tokenizer: Any) -> None:
    bare = make_tiny_tokenizer()
    bare.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    conversation = Conversation("row", TWO_TURNS[:2])
    with_end = ConversationEncoder(bare, 100).encode(conversation)
    without = ConversationEncoder(bare, 100, add_eos=False).encode(conversation)
    assert learnt(bare, with_end) == "8<|end|>"
    assert learnt(bare, without) == "8"


def test_only_the_last_answer_gets_an_end_token_that_the_template_does_not_write() -> None:
    other = make_tiny_tokenizer()
    other.chat_template = (
        "{% for message in messages %}{{ message['content'] }}<|assistant|>\n{% endfor %}"  # as end of turn
    )
    example = ConversationEncoder(other, 100).encode(Conversation("row", TWO_TURNS))
    assert (
        other.decode(example.token_ids) == "3 8<|assistant|>\n8<|assistant|>\n4 1<|assistant|>\n4<|assistant|><|end|>"
    )


def test_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = "{{ messages | length }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(DataError, match="rewrites earlier turns of row"):
        ConversationEncoder(tokenizer, 100).encode(Conversation("row", TWO_TURNS))


def test_long_conversations_are_left_out_and_counted(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    short, long = Conversation("short", TWO_TURNS[:2]), Conversation("long", TWO_TURNS)
    size = len(ConversationEncoder(tokenizer, 0).encode(short).token_ids)
    kept = ConversationEncoder(tokenizer, size).encode_all([short, long])
    assert [example.row_id for example in kept] == ["short"]
    assert "left out 1 of 2 conversations" in caplog.text
    with pytest.raises(DataError, match="no conversation is left"):
        ConversationEncoder(tokenizer, 3).encode_all([short])


def write(path: Path, rows: list[dict[str, Any]]) -> DatasetSettings:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DatasetSettings(dataset_name=str(path), input_key="question", output_key="answer")


def test_rows_with_messages_are_conversations(tmp_path: Path, tokenizer: Any) -> None:
    trailing = [*TWO_TURNS, {"role": "user", "content": "never answered"}]
    settings = write(tmp_path / "chat.jsonl", [{"messages": trailing}])
    (conversation,) = load_conversations(settings, "messages", PromptBuilder(tokenizer, 0))
    assert conversation.messages == TWO_TURNS


def test_rows_with_problem_and_answer_are_one_exchange_and_the_answer_is_whole(tmp_path: Path, tokenizer: Any) -> None:
    settings = write(tmp_path / "table.jsonl", [{"question": "3 8", "answer": "8 is larger.\n#### 8"}])
    (conversation,) = load_conversations(settings, "messages", PromptBuilder(tokenizer, 0))
    assert conversation.messages == (
        {"role": "user", "content": "3 8"},
        {"role": "assistant", "content": "8 is larger.\n#### 8"},
    )


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "user", "content": "3 8"}], "no assistant message"),
        ([{"role": "nobody", "content": "3 8"}], "must be a list of messages"),
        ("3 8", "must be a list of messages"),
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path: Path, tokenizer: Any, messages: Any, problem: str) -> None:
    settings = write(tmp_path / "chat.jsonl", [{"messages": messages}])
    with pytest.raises(DataError, match=problem):
        load_conversations(settings, "messages", PromptBuilder(tokenizer, 0))


def test_generated_tasks_teach_their_answers(tokenizer: Any) -> None:
    settings = DatasetSettings(dataset_name="tiny_max", size=3)
    conversations = load_conversations(settings, "messages", PromptBuilder(tokenizer, 0))
    asked = [conversation.messages[0]["content"] for conversation in conversations]
    assert [conversation.messages[1]["content"] for conversation in conversations] == [max(q.split()) for q in asked]


def test_game_without_an_answer_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="has no answers to imitate"):
        load_conversations(DatasetSettings(dataset_name="guess_number"), "messages", PromptBuilder(tokenizer, 0))
