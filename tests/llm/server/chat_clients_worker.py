"""LiteLLM's and LangChain's own chats, in an environment of their own (.venv-clients): for
`client_calls.py`."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched

import litellm
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

litellm.suppress_debug_info = True
litellm.num_retries = 0
MESSAGES = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "title": "verdict",
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def options(url: str, provider: str = "openai") -> dict[str, Any]:
    where = {"model": f"{provider}/tiny", "api_base": f"{url}/v1", "api_key": "none"}
    return {**where, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}


def chat(url: str, provider: str = "openai", **more: Any) -> str:
    return str(litellm.completion(**options(url, provider), **more).choices[0].message.content)


def chat_stream(url: str) -> str:
    chunks = litellm.completion(**options(url), stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def chat_async(url: str) -> str:
    answer = await litellm.acompletion(**options(url), stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


def chat_logprobs(url: str) -> int:
    answer = litellm.completion(**options(url), logprobs=True, top_logprobs=2)
    return len(answer.choices[0].logprobs.content)


def chat_formed(url: str) -> Any:
    schema = {"name": "verdict", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    text = chat(url, response_format=form)
    return sorted(json.loads(text))


def chat_refused(url: str) -> str:
    try:
        chat(url, n=0)
    except litellm.BadRequestError as error:
        return "n: " if "n" in str(error) else str(error)
    return "answered"


def model(url: str, **more: Any) -> ChatOpenAI:
    settings = {"temperature": 0, "max_tokens": 12, "max_retries": 0, **more}
    return ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key="none", **settings)


def chain_stream(url: str) -> str:
    chunks = model(url, stream_usage=True).stream("Hello")
    return "".join(str(chunk.content) for chunk in chunks)


def chain_usage(url: str) -> Any:
    return model(url).invoke("Hello").usage_metadata["output_tokens"]


def chain_batch(url: str) -> list[str]:
    roles = [SystemMessage("Hello"), HumanMessage("Hello")]
    answers = model(url).batch(["Hello", [HumanMessage("Hello")], roles])
    return [str(each.content) for each in answers][:2]


def chain_formed(url: str) -> Any:
    return sorted(model(url).with_structured_output(SCHEMA, method="json_schema").invoke("Hello"))


def chain_prompt(url: str) -> str:
    made = OpenAI(model="tiny", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=12)
    return str(made.invoke("Hello"))


CALLS: dict[str, Callable[[str], Any]] = {
    "litellm": chat,
    "litellm hosted_vllm": lambda url: chat(url, "hosted_vllm"),
    "litellm stream": chat_stream,
    "litellm async": lambda url: asyncio.run(chat_async(url)),
    "litellm logprobs": chat_logprobs,
    "litellm json_schema": chat_formed,
    "litellm refused": chat_refused,
    "langchain": lambda url: str(model(url).invoke("Hello").content),
    "langchain stream": chain_stream,
    "langchain usage": chain_usage,
    "langchain batch": chain_batch,
    "langchain structured": chain_formed,
    "langchain prompt": chain_prompt,
}
