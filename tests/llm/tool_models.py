"""Tiny models whose templates and tokens have the conventions that people's models have."""

import json
from pathlib import Path
from typing import Any

import torch
from models import build
from tokenizers import AddedToken, Tokenizer

HERMES = """{% if tools %}<|user|># Tools{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
Write <tool_call>{"name": <name>, "arguments": <arguments>}</tool_call>{% endif %}\
{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content }}\
{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
QWEN3 = (
    HERMES.replace("<tool_call>{% endif", "<tool_call> </think>{% endif")
    + """{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif opens %}<think>
{% endif %}"""
)
LLAMA = """{% if tools %}<|user|>Respond as {"name": function name, "parameters": dictionary}.\
{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}\
{% for m in messages %}<|user|>{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}\
{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}\
{% else %}{{ m.content }}{% endif %}{% endfor %}<|assistant|>"""
MISTRAL = """{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}\
{{ c.function | tojson }}{% endfor %}]{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|>"""
MISTRAL_ARGS = """{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}\
[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}\
{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|>"""
# The name of a model: its template, its added tokens, and which of them are special.
FORMS: dict[str, tuple[str | None, dict[str, bool]]] = {
    "hermes": (HERMES, {"<tool_call>": False, "</tool_call>": False}),
    "spelled": (HERMES, {}),
    "qwen3": (QWEN3, dict.fromkeys(["<tool_call>", "</tool_call>", "<think>", "</think>"], False)),
    "llama": (LLAMA, {"<|python_tag|>": True}),
    "mistral": (MISTRAL, {"[TOOL_CALLS]": True}),
    "mistral-args": (MISTRAL_ARGS, {"[TOOL_CALLS]": True, "[ARGS]": True}),
    "generic": (None, {}),
}
CONTEXT = 4096


def build_with_tools(form: str, folder: Path, kind: str = "llama") -> Path:
    """A two-layer model of random weights, with room for tools in its context."""
    template, tokens = FORMS[form]
    build(kind, folder)
    file = folder / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token, is_special in tokens.items():
        added = AddedToken(token, normalized=False, special=is_special)
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([added])
    tokenizer.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def favour(folder: Path, token: str, by: float) -> None:
    """Make a token likelier in every answer."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    index = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(token)
    generator = torch.Generator().manual_seed(index)
    row = weights["lm_head.weight"][index]
    weights["lm_head.weight"][index] = row + by * torch.randn(row.shape, generator=generator)
    save_file(weights, file, metadata={"format": "pt"})
