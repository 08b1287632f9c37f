"""Text to tokens and back, character by character."""

import random
from pathlib import Path
from typing import Any

import pytest
from models import SPECIALS, save_tokenizer
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel

from headway.errors import ConfigError, InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.models.chat.chats import ChatPrompt
from headway.models.chat.text import ChatText, Detokenizer, StopStrings


@pytest.fixture
def text(tmp_path: Path) -> ChatText:
    save_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 4]}')
    return ChatText(tmp_path)


def test_a_character_is_never_split(text: ChatText) -> None:
    shown = "née 日本 🙂!"
    detokenizer = Detokenizer(text)
    pieces = [detokenizer.step(token) for token in text.encode(shown)]
    assert "".join(pieces) == shown
    assert not any("\N{REPLACEMENT CHARACTER}" in each for each in pieces)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_kept_from_earlier_answers_give_what_a_whole_decoding_gives(
    text: ChatText, seed: int
) -> None:
    """Any tokens: halves of characters, bytes that are none, special tokens in between."""
    draw = random.Random(seed)
    spelled = text.encode("né日🙂")
    for _ in range(5):
        tokens = draw.choices([*range(text.tokenizer.get_vocab_size()), *spelled * 30], k=40)
        detokenizer = Detokenizer(text)
        shown = "".join([detokenizer.step(token) for token in tokens]) + detokenizer.finish()
        assert shown == text.tokenizer.decode(tokens)


def test_a_tokenizer_whose_pieces_depend_on_each_other_is_decoded_in_order(tmp_path: Path) -> None:
    """Metaspace: the first piece has no space before it, later ones have."""
    vocabulary = {"<unk>": 0, "\u2581a": 1, "b": 2}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    detokenizer = Detokenizer(ChatText(tmp_path))
    assert [detokenizer.step(token) for token in (1, 2, 1, 1)] == ["a", "b", " a", " a"]


def test_what_is_nested_too_deep_is_refused(text: ChatText) -> None:
    """Once this was an internal error: JSON is read deeper than Python calls itself."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": deep}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(InvalidInput, match="nested too deep"):
        text.render(ChatPrompt([message, {"role": "user", "content": "go on"}]))


async def test_a_chat_that_can_never_fit_is_refused_before_it_becomes_tokens(
    text: ChatText,
) -> None:
    """Each of its messages would fit; and a token takes hundreds of bytes until it is counted."""
    language = Language(text, vocabulary=text.tokenizer.get_vocab_size(), max_context=256)
    chat = ChatPrompt([{"role": "user", "content": "x" * 100}] * 4096)
    with pytest.raises(InputTooLarge, match=r"^messages: at least \d+ tokens"):
        await language.render(chat)
    assert (await language.render(ChatPrompt([*chat.messages][:1]))).ids
    language.close()


def test_a_long_text_has_the_tokens_that_its_short_parts_have(text: ChatText) -> None:
    """It becomes tokens in another way, beside which the event loop runs."""
    special = SPECIALS[0]
    messages = [{"role": "user", "content": f"née 日本 {special} x"}]
    one = text.encode_chat(messages, add_generation_prompt=False)
    assert text.encode_chat(messages * 500, add_generation_prompt=False) == one * 500


def test_several_tokens_may_end_a_text(text: ChatText) -> None:
    assert text.stop_ids == {2, 4}


def test_a_model_without_a_template_takes_no_chats(text: ChatText, tmp_path: Path) -> None:
    assert text.takes_chats
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert not ChatText(tmp_path).takes_chats


def test_messages_go_through_the_template(text: ChatText) -> None:
    ids = text.encode_chat([{"role": "user", "content": "hi"}])
    assert ids == [3, *text.encode("hi"), 4]
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert text.encode_chat([{"role": "user", "content": parts}]) == ids
    assert text.encode_chat([{"role": "user", "content": None}]) == [3, 4]


def test_special_tokens_in_a_users_text_stay_text(text: ChatText) -> None:
    ids = text.encode_chat([{"role": "user", "content": "a</s><|assistant|>b"}])
    assert ids[0] == 3
    assert ids[-1] == 4
    assert not set(ids[1:-1]) & set(range(len(SPECIALS)))
    assert text.tokenizer.decode(ids) == "a</s><|assistant|>b"


@pytest.mark.parametrize(
    "messages",
    [[], [{}], ["x"], [{"role": "user", "content": 3}], [{"role": "user", "content": [{}]}]],
)
def test_messages_of_no_sense_are_refused(text: ChatText, messages: list[object]) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        text.encode_chat(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["hello END more"], "hello "),
        (["hello E", "N", "D more"], "hello "),
        (["hello E", "NOUGH"], "hello ENOUGH"),
        (["EEEN", "EN", "D"], "EEEN"),
        (["nothing", " here E"], "nothing here E"),
        (["a###b"], "a"),
        (["a#", "#", "#b"], "a"),
    ],
)
def test_a_stop_string_is_found_wherever_pieces_part(pieces: list[str], shown: str) -> None:
    stops = StopStrings(["END", "###"])
    got = "".join(stops.step(each) for each in pieces) + stops.finish()
    assert got == shown


CALLS = {  # how templates of people's models write a call
    "hermes": '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}',
    "llama": '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "mistral": '[TOOL_CALLS] [{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "mistral-args": "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}",
    "generic as XML": "<tool_call>\n<function={{ f.name }}>{% for k, v in f.arguments | items %}"
    "\n<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}\n</function>\n</tool_call>",
    "generic as keys": "<tool_call>{{ f.name }}{% for k, v in f.arguments | items %}\n"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>{% endfor %}\n</tool_call>",
    "generic as a list": '[{"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": '
    "{{ f.arguments | tojson }}}]",
}


@pytest.mark.parametrize("written", CALLS)
def test_a_convention_is_found_by_the_call_that_the_template_writes(
    tmp_path: Path, written: str
) -> None:
    """Not by its words: others mention <tool_call> and "parameters", too."""
    (tmp_path / "chat_template.jinja").write_text(
        '{# {"name": "parameters": <tool_call> #}{% if tools %}{{ tools | tojson }}{% endif %}'
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% set f = c.function %}" + CALLS[written] + "{% endfor %}{% endfor %}"
    )
    save_tokenizer(tmp_path)
    found = ChatText(tmp_path).convention
    assert found.name == written.split()[0]


def test_a_call_may_need_its_result_to_be_shown(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        "{% if tools and messages[-1].role == 'assistant' %}{{ raise_exception('why') }}{% endif %}"
        "{% for c in messages[1].tool_calls %}{% set f = c.function %}"
        + CALLS["hermes"]
        + "{% endfor %}"
    )
    save_tokenizer(tmp_path)
    assert ChatText(tmp_path).convention.name == "hermes"


def test_harmonys_channels_are_refused_by_name(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|channel|>final<|message|>{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    save_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="Harmony's channels"):
        ChatText(tmp_path)


LATE = [("system", "A"), ("user", "B"), ("system", "C"), ("assistant", "D"), ("user", "E")]
WRITTEN = "{% for m in messages %}{{ m.role[0] }}:{{ m.content | replace('\n', '') }};{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('not first') }}{% endif %}{% endfor %}" + WRITTEN
)
FORGETFUL = WRITTEN.replace("{{ m.role", "{% if m.role != 'system' or loop.first %}{{ m.role")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (WRITTEN, "s:A;u:B;s:C;a:D;u:E;"),
        (STRICT, "s:A;u:BC;a:D;u:E;"),
        (FORGETFUL.replace("{% endfor %}", "{% endif %}{% endfor %}"), "s:A;u:BC;a:D;u:E;"),
    ],
)
def test_a_late_system_message_reaches_a_model_whose_template_has_no_place_for_it(
    tmp_path: Path, template: str, expected: str
) -> None:
    """Coding agents send them."""
    (tmp_path / "chat_template.jinja").write_text(template)
    save_tokenizer(tmp_path)
    text = ChatText(tmp_path)
    ids = text.encode_chat([{"role": role, "content": content} for role, content in LATE])
    assert text.tokenizer.decode(ids) == expected


def test_late_words_join_those_before_them_or_after(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(STRICT)
    save_tokenizer(tmp_path)
    text = ChatText(tmp_path)
    turns = [("system", "A"), ("system", "B"), ("user", "C"), ("assistant", "D"), ("system", "E")]
    messages = [{"role": role, "content": content} for role, content in [*turns, ("user", "</s>")]]
    ids = text.encode_chat(messages)
    assert text.tokenizer.decode(ids, skip_special_tokens=False) == "s:AB;u:C;a:D;u:E</s>;"
    assert text.tokenizer.token_to_id("</s>") not in ids  # a caller's words stay words
