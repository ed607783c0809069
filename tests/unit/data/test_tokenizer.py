"""Model folders and tokenizers that fit, and one sentence for each that does not."""

import json

import pytest

from nemo_rl.data.errors import DataError
from nemo_rl.data.tokenizer import load_tokenizer, validate_model_folder


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_good_folder_passes(model_folder):
    tokenizer = load_tokenizer(model_folder)
    validate_model_folder(model_folder, tokenizer)
    assert tokenizer.decode(tokenizer("1 + 2\n")["input_ids"]) == "1 + 2\n"


def test_given_template_replaces_the_own(model_folder, tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    for name in ("mine.jinja", "mine.txt"):
        (tmp_path / name).write_text("[{{ messages[0]['content'] }}]")

    def rendered(template):
        return load_tokenizer(model_folder, template).apply_chat_template(messages, tokenize=False)

    assert rendered("default") == rendered(None) == "<|user|>hi<|end|>"
    assert rendered("passthrough") == "hi"
    assert rendered("<{{ messages[0]['content'] }}>") == "<hi>"
    assert rendered(str(tmp_path / "mine.jinja")) == rendered(str(tmp_path / "mine.txt")) == "[hi]"


def test_padding_token_falls_back_to_the_end_token(model_folder):
    edit_json(model_folder / "tokenizer_config.json", pad_token=None)
    assert load_tokenizer(model_folder).pad_token == "<|end|>"


def test_missing_template_says_how_to_give_one(model_folder):
    (model_folder / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=r"no chat template.*policy\.tokenizer\.chat_template"):
        load_tokenizer(model_folder)
    assert load_tokenizer(model_folder, "passthrough").chat_template


def test_text_that_is_no_template_is_refused(model_folder, tmp_path):
    with pytest.raises(DataError, match=r"chat template file mine\.txt does not exist, and as text it is no template"):
        load_tokenizer(model_folder, "mine.txt")
    (tmp_path / "empty.jinja").write_text("hello")
    with pytest.raises(DataError, match=r"empty\.jinja holds no template"):
        load_tokenizer(model_folder, str(tmp_path / "empty.jinja"))


@pytest.mark.parametrize(("file", "content", "message"), [
    ("config.json", b"[1]", "config.json holds a list where a JSON object is expected"),
    ("config.json", b'{"model_type": "qwen3", "num_hidden_layers": "x"}', "expected int, got str"),
    ("tokenizer_config.json", b"{", "tokenizer_config.json is not valid JSON"),
    ("tokenizer.json", b"{\xff", "tokenizer.json is not valid JSON"),
])  # fmt: skip
def test_broken_file_of_a_model_is_named(model_folder, file, content, message):
    (model_folder / file).write_bytes(content)

    def load_all():
        validate_model_folder(model_folder, load_tokenizer(model_folder))

    with pytest.raises(DataError, match=message) as caught:
        load_all()
    assert "\n" not in str(caught.value)


def test_missing_parts_are_one_sentence(model_folder, tmp_path):
    tokenizer = load_tokenizer(model_folder)
    with pytest.raises(DataError, match=r"model folder .*nothing does not exist"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"chat template file no\.jinja does not exist"):
        load_tokenizer(model_folder, "no.jinja")
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        validate_model_folder(model_folder, tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_folder / name).unlink()
    with pytest.raises(DataError, match="has no tokenizer"):
        load_tokenizer(model_folder)
    (model_folder / "config.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        validate_model_folder(model_folder, tokenizer)
    (model_folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"has no config\.json"):
        validate_model_folder(model_folder, tokenizer)


def test_tokenizer_larger_than_the_vocabulary_is_refused(model_folder):
    tokenizer = load_tokenizer(model_folder)
    edit_json(model_folder / "config.json", vocab_size=100)
    with pytest.raises(DataError, match=r"has 128 tokens but the model .* embeds only 100"):
        validate_model_folder(model_folder, tokenizer)
