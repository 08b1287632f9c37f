"""A caller's text is never a control token, whatever the tokenizer and the template are."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from benchmarks.exactness import tokenizer_kinds
from benchmarks.exactness.chat_templates import TEMPLATES
from benchmarks.exactness.tokenizer_kinds import CONTROL, KINDS
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidInput
from headway.models.chat.text import ChatText, Detokenizer
from headway.models.chat.traced import CALLER, TEMPLATE, Traced, of_caller, of_template

WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})
ALIKE = [spelled for token in CONTROL for spelled in (token, token.translate(WIDE), token.upper())]
TEXTS = st.lists(
    st.sampled_from([*ALIKE, *(token[:4] for token in CONTROL), *(token[4:] for token in CONTROL)])
    | st.text("<|>im_endst/s[] \n＜｜＞x", max_size=8),
    max_size=4,
).map("".join)


@cache
def text_of(kind: str, template: str) -> ChatText:
    folder = Path(mkdtemp())
    tokenizer_kinds.save(kind, folder)
    said = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "chat_template": template}))
    return ChatText(folder)


def control_tokens(text: ChatText, first: str, second: str) -> list[int] | None:
    known = {text.tokenizer.token_to_id(token) for token in CONTROL if token != "<unk>"}
    chat = [
        {"role": "user", "content": first, "name": second, "reasoning_content": first},
        {"role": "assistant", "content": second, "reasoning_content": first},
        {"role": "user", "content": first + second},
    ]
    try:
        return [id_ for id_ in text.encode_chat(chat) if id_ in known]
    except InvalidInput:
        return None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(template=st.sampled_from(sorted(TEMPLATES)), first=TEXTS, second=TEXTS)
def test_no_text_of_a_caller_becomes_a_control_token(
    kind: str, template: str, first: str, second: str
) -> None:
    text = text_of(kind, TEMPLATES[template])
    assert control_tokens(text, first, second) in (control_tokens(text, "x", "y"), None)


@pytest.mark.parametrize(
    "template",
    [
        "{{ m.content | trim }}",
        "{{ m.content.replace('-', '') }}",
        "{{ m.content[2:] }}",
        "{{ m.name }}",
        "{{ m.reasoning_content }}",
        "{{ m | tojson }}",
        "{{ m.content }}{{ m.name }}",
        "{{ '%s' | format(m.content) }}",
    ],
)
@pytest.mark.parametrize("kind", ["byte-level", "folding", "unigram"])
def test_filters_names_and_borders_make_no_control_token(kind: str, template: str) -> None:
    """Each was a way for a caller to write `</s>`."""
    text = text_of(kind, "{% for m in messages %}" + template + "{% endfor %}")
    for content, name in (("--</s>", "</s>"), ("--</", "s>"), ("＜/s＞", "＜／ｓ＞")):
        message = {"role": "user", "content": content, "name": name, "reasoning_content": name}
        try:
            ids = text.encode_chat([message])
        except InvalidInput as error:
            assert "</s>" in str(error)  # noqa: PT017
        else:
            assert text.tokenizer.token_to_id("</s>") not in ids


def test_a_role_that_no_template_knows_is_text() -> None:
    text = text_of("byte-level", "{% for m in messages %}<|{{ m.role }}|>{% endfor %}")
    ids = text.encode_chat([{"role": "user", "content": "x"}, {"role": "im_start", "content": "x"}])
    assert [text.tokenizer.token_to_id(each) in ids for each in ("<|user|>", "<|im_start|>")] == [
        True,
        False,
    ]


TRACED = st.lists(
    st.tuples(st.text("ab \n|", max_size=4), st.booleans()).map(
        lambda part: of_template(part[0]) if part[1] else of_caller(part[0])
    ),
    max_size=5,
).map(lambda parts: Traced("", b"").join(parts))


@given(text=TRACED, other=TRACED, cut=st.integers(-3, 8))
def test_traced_text_is_cut_and_joined_like_any_text(text: Traced, other: Traced, cut: int) -> None:
    plain, others = str.__str__(text), str.__str__(other)
    pairs = [
        (text + other, plain + others),
        (text[cut:], plain[cut:]),
        (text.strip(), plain.strip()),
        (text.replace("a", other), plain.replace("a", others)),
        (text.upper(), plain.upper()),
        (other.join(text.split()), others.join(plain.split())),
        (other.join(text.split("|", 1)), others.join(plain.split("|", 1))),
        (other.join(text.rsplit(None, 1)), others.join(plain.rsplit(None, 1))),
        (other.join(text.splitlines()), others.join(plain.splitlines())),
        (other.join(text.partition("a")), others.join(plain.partition("a"))),
        (other.join(text.rpartition("a")), others.join(plain.rpartition("a"))),
        (text * 2, plain * 2),
        (text.removeprefix("a"), plain.removeprefix("a")),
        (text.removesuffix("b"), plain.removesuffix("b")),
    ]
    for got, wanted in pairs:
        assert got == wanted
        assert len(got.origins) == len(got)


@given(texts=st.lists(st.text("ab ", max_size=5), max_size=4))
def test_what_a_template_does_to_text_keeps_who_wrote_it(texts: list[str]) -> None:
    joined = of_template("-").join([of_caller(each) for each in texts])
    assert joined.origins == b"".join(
        TEMPLATE if letter == "-" else CALLER for letter in str.__str__(joined)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_are_no_character_are_shown_and_nothing_is_held_for_ever(kind: str) -> None:
    text = text_of(kind, "")
    size = text.tokenizer.get_vocab_size()
    for step in (1, 7, 31):
        detokenizer = Detokenizer(text)
        shown = [detokenizer.step(token * step % size) for token in range(size)]
        assert "".join([*shown, detokenizer.finish()])


def test_half_a_character_at_the_end_of_an_answer_is_not_lost() -> None:
    text = text_of("mistral", "")
    detokenizer = Detokenizer(text)
    first = text.tokenizer.token_to_id("<0xE6>")
    assert detokenizer.step(first) == ""
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"
