"""What follows a sampled turn, beside the text that a person would write there by hand."""

from pathlib import Path
from typing import Any

import pytest

from nemo_rl.data.interfaces import Message, Prompt
from nemo_rl.data.tokenizer import PASSTHROUGH_TEMPLATE
from nemo_rl.environments.interfaces import EnvironmentOutput
from nemo_rl.experience.episodes import Episode, RolloutSettings, episodes_of
from nemo_rl.experience.observations import TemplateError, observation_tokens
from nemo_rl.generation.interfaces import FinishReason, GenerationOutput, SamplingSettings, VersionSpan
from nemo_rl.utils.tiny_model import make_tiny_tokenizer

ROLE = "<|{{ m.role }}|>"
ANSWER = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = "{% for m in messages %}" + ROLE + "{{ m.content }}<|end|>\n{% endfor %}" + ANSWER
TRIMS = "{% for m in messages %}" + ROLE + "{{ m.content | trim }}<|end|>\n{% endfor %}" + ANSWER
# the model's end token is not the tokenizer's
OTHER_END = "{% for m in messages %}" + ROLE + "{{ m.content | trim }}<|unused0|>\n{% endfor %}" + ANSWER
THINKS = PLAIN + "{% if add_generation_prompt and think is false %}no{% endif %}"
BASE_MODEL = (
    "{% for m in messages %}{{ {'user': 'User', 'assistant': 'Assistant'}[m.role] }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
# as Qwen3 does: thoughts of earlier turns go, and the latest turn gets an empty thought where it has none
FORGETS = (
    "{% for m in messages %}" + ROLE + "{% if m.role == 'assistant' %}"
    "{% if loop.last %}(thinks){% endif %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}" + ANSWER
)
HINT: Message = {"role": "user", "content": "Higher."}


@pytest.fixture
def tokenizer() -> Any:
    """A token for every character, and for each of "<|user|>", "<|end|>" (its end token), "<|unused0|>"."""
    tokenizer = make_tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|assistant|>", "<|user|>", "<|unused0|>"]})
    return tokenizer


def continued(tokenizer: Any, template: str, sampled: str, hint: Message = HINT, **template_kwargs: Any) -> str:
    """The text of a conversation's tokens after one turn and one observation, the prompt left out."""
    tokenizer.chat_template = template
    start = tokenizer.encode("<|user|>Guess!<|end|>\n<|assistant|>", add_special_tokens=False)
    said = tokenizer.encode(sampled, add_special_tokens=False)
    answer = {"role": "assistant", "content": tokenizer.decode(said, skip_special_tokens=True)}
    messages: list[Message] = [{"role": "user", "content": "Guess!"}, answer]
    tokens = observation_tokens(tokenizer, messages, [hint] if hint else [], start + said, template_kwargs)
    text: str = tokenizer.decode(said + tokens)
    return text


NEXT = "<|user|>Higher.<|end|>\n<|assistant|>"


@pytest.mark.parametrize("template", [PLAIN, TRIMS])
@pytest.mark.parametrize("answer", ["5", "", "end", " 5", "5\n", "\n\n", "|end|", "assistant", "user"])
def test_the_sampled_end_token_is_not_repeated_and_its_newline_is_not_lost(
    tokenizer: Any, template: str, answer: str
) -> None:
    assert continued(tokenizer, template, f"{answer}<|end|>") == f"{answer}<|end|>\n{NEXT}"


@pytest.mark.parametrize("answer", ["5", "", " 5 \n", "unused0"])
def test_an_end_token_that_is_not_the_tokenizers_is_not_repeated_either(tokenizer: Any, answer: str) -> None:
    following = NEXT.replace("<|end|>", "<|unused0|>")
    assert continued(tokenizer, OTHER_END, f"{answer}<|unused0|>") == f"{answer}<|unused0|>\n{following}"


@pytest.mark.parametrize("answer", ["5", "<", "5\n"])
def test_a_turn_that_a_text_ended_gets_the_end_token(tokenizer: Any, answer: str) -> None:
    """ "<" is also how the end token's text begins, but it is another token."""
    assert continued(tokenizer, PLAIN, answer) == f"{answer}<|end|>\n{NEXT}"


def test_an_end_token_that_the_template_does_not_know_stays(tokenizer: Any) -> None:
    assert continued(tokenizer, PLAIN, "5<|unused0|>") == f"5<|unused0|><|end|>\n{NEXT}"


@pytest.mark.parametrize("sampled", ["5", "5\n", "5\nUser:"])
def test_a_stop_text_of_several_tokens_is_not_repeated(tokenizer: Any, sampled: str) -> None:
    assert continued(tokenizer, BASE_MODEL, sampled) == "5\nUser: Higher.\nAssistant: "


@pytest.mark.parametrize("sampled", ["H", "5H", "5<|end|>"])
def test_an_observation_that_begins_as_the_turn_ended_is_kept_whole(tokenizer: Any, sampled: str) -> None:
    assert continued(tokenizer, PASSTHROUGH_TEMPLATE, sampled) == f"{sampled}Higher."


def test_a_template_that_rewrites_earlier_turns_leaves_sampled_tokens_alone(tokenizer: Any) -> None:
    sampled = "<think>between 1 and 9</think>\n5<|end|>"
    assert continued(tokenizer, FORGETS, sampled) == f"{sampled}\n{NEXT}"


def test_arguments_of_the_template_hold_in_every_turn(tokenizer: Any) -> None:
    assert continued(tokenizer, THINKS, "5<|end|>", think=False) == f"5<|end|>\n{NEXT}no"
    assert continued(tokenizer, THINKS, "5<|end|>") == f"5<|end|>\n{NEXT}"


def test_an_environment_may_say_nothing(tokenizer: Any) -> None:
    assert continued(tokenizer, PLAIN, "5<|end|>", hint={}) == "5<|end|>\n<|assistant|>"


@pytest.mark.parametrize(("template", "times"), [(ANSWER, 0), (PLAIN + "{{ messages[1].content }}", 2)])
def test_a_template_that_does_not_print_a_turn_once_is_refused(tokenizer: Any, template: str, times: int) -> None:
    with pytest.raises(TemplateError, match=rf"prints what an assistant says {times} times.*chat_template"):
        continued(tokenizer, template, "5<|end|>")


@pytest.mark.parametrize(("think", "prompt"), [(True, "<think>\n"), (False, "<think>\n\n</think>\n\n")])
def test_a_published_template_that_forgets_thoughts(tokenizer: Any, think: bool, prompt: str) -> None:
    """Qwen3's, as vLLM ships it for a model made from it."""
    import vllm

    file = Path(vllm.__file__).parent / "transformers_utils/chat_templates/template_minicpmv45.jinja"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    sampled = "<think>\nhalf of it\n</think>\n\n 5<|im_end|>"
    following = f"\n<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n{prompt}"
    text = continued(tokenizer, file.read_text(encoding="utf-8"), sampled, enable_thinking=think)
    assert text == sampled + following


def test_an_episode_masks_what_it_did_not_sample_and_passes_the_templates_arguments(tokenizer: Any) -> None:
    tokenizer.chat_template = THINKS
    start = tuple(tokenizer.encode("<|user|>Guess!<|end|>\n<|assistant|>no", add_special_tokens=False))
    prompt = Prompt("row:0", ({"role": "user", "content": "Guess!"},), start, "guess", {})
    settings = RolloutSettings(8, 99, 3, SamplingSettings(), None, {"think": False})
    episode: Episode = episodes_of([prompt], ["group"], 1)[0]
    said = tuple(tokenizer.encode("5<|end|>", add_special_tokens=False))
    episode.append_turn(
        GenerationOutput("r", said, (-1.0, -2.0), FinishReason.STOP, (VersionSpan(0, 2, 0),)), tokenizer
    )
    episode.apply(EnvironmentOutput(0.0, False, (HINT,)), settings, tokenizer)
    assert tokenizer.decode(episode.token_ids[len(start) :]) == f"5<|end|>\n{NEXT}no"
    assert [i - len(start) for i, sampled in enumerate(episode.loss_mask) if sampled] == [0, 1]
    assert len(episode.loss_mask) == len(episode.token_ids) == len(episode.logprobs)
