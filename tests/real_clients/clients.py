"""Python clients and frameworks, as they come from PyPI, against a running server:

    python clients.py URL MODEL [words of the names of those to try]

What a small model says does not count here, only whether each client understands its answers.
Frameworks exclude each other's versions: `*-requirements.txt` are three environments, and what
an environment lacks is left out.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Annotated, Any, Literal

os.environ.update(OPENAI_API_KEY="none", ANTHROPIC_API_KEY="none", LITELLM_LOCAL_MODEL_COST_MAP="1")

from pydantic import BaseModel, Field

URL, MODEL, *WORDS = sys.argv[1:]
V1 = f"{URL}/v1"
MOST = 600  # tokens
MESSAGES: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Oslo", "Rome"]
    days: Annotated[int, Field(ge=1, le=9)]


def weather(city: Literal["Oslo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """The weather in a city.

    Args:
        city: The city's name.
        days: How many days.
    """
    return f"Sun in {city}"


TOOL = {"name": "weather", "description": "", "parameters": Weather.model_json_schema()}
TOOLS = [{"type": "function", "function": TOOL}]


# ---- LiteLLM and DSPy


def litellm_call(kind: str, base: str, **more: Any) -> Any:
    import litellm

    where = {"model": f"{kind}/{MODEL}", "api_base": base, "api_key": "none"}
    return litellm.completion(**where, messages=MESSAGES, max_tokens=MOST, num_retries=0, **more)


def litellm_calls(kind: str, base: str) -> None:
    assert litellm_call(kind, base).choices[0].message
    assert len(list(litellm_call(kind, base, stream=True))) > 1
    formed = litellm_call(kind, base, response_format=Weather).choices[0].message.content
    Weather.model_validate_json(formed)
    if not kind.startswith("ollama"):  # it knows no tool_choice
        chosen = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = litellm_call(kind, base, **chosen).choices[0].message.tool_calls
        Weather.model_validate_json(call.function.arguments)


def litellm_responses() -> None:
    import litellm

    asked = {"model": f"openai/{MODEL}", "api_base": V1, "input": "Hello", "max_output_tokens": 99}
    assert litellm.responses(**asked).output
    assert len(list(litellm.responses(**asked, stream=True))) > 1


def dspy_call(program: Callable[[Any], Any], kind: str = "chat", **adapter: Any) -> None:
    """DSPy reads its fields out of text: words in a wrong place are the model's fault."""
    import dspy
    from dspy.utils.exceptions import AdapterParseError

    where = {"api_base": V1, "api_key": "none", "model_type": kind}
    model = dspy.LM(f"openai/{MODEL}", **where, max_tokens=MOST, cache=False, num_retries=0)
    with dspy.context(lm=model, **adapter):
        try:
            program(dspy)
        except AdapterParseError:
            assert model.history
    assert model.history[-1]["outputs"]


def dspy_react(dspy: Any) -> None:
    dspy.ReAct("question -> answer", tools=[weather], max_iters=2)(question="Sun?")


# ---- instructor and smolagents


def instructed(mode: str, kind: Any = Weather) -> None:
    import instructor
    import openai
    from instructor.core import IncompleteOutputException, InstructorRetryException

    client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0)
    made = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions
    asked = {"model": MODEL, "messages": MESSAGES, "response_model": kind, "max_retries": 0}
    try:
        made.create(**asked, max_tokens=MOST)
    except (InstructorRetryException, IncompleteOutputException):
        # In these the model may answer with words, and of any form.
        if "JSON" not in mode and mode != "PARALLEL_TOOLS":
            raise


def instructed_anthropic() -> None:
    import anthropic
    import instructor

    client = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, max_retries=0))
    asked = {"model": MODEL, "messages": MESSAGES, "response_model": Weather, "max_retries": 0}
    assert client.messages.create(**asked, max_tokens=MOST)


def smol(agent: str, **more: Any) -> None:
    import smolagents

    model = smolagents.OpenAIServerModel(MODEL, V1, api_key="none", max_tokens=MOST)
    tools = [smolagents.tool(weather)]
    made = getattr(smolagents, agent)(tools, model, max_steps=2, verbosity_level=-1, **more)
    made.run("How is the weather in Oslo?")
    assert any(getattr(each, "model_output_message", None) for each in made.memory.steps)


# ---- LangChain, LangGraph, pydantic-ai, OpenAI's Agents SDK


def chain(kind: str) -> Any:
    from langchain_anthropic import ChatAnthropic
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    if kind == "anthropic":
        return ChatAnthropic(model=MODEL, base_url=URL, max_tokens=MOST)
    if kind == "ollama":
        return ChatOllama(model=MODEL, base_url=URL, num_predict=MOST)
    is_new = kind == "responses"
    return ChatOpenAI(model=MODEL, base_url=V1, max_tokens=MOST, use_responses_api=is_new)


def chained(kind: str) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool

    model, tools = chain(kind), [tool(weather)]
    assert model.invoke("Hello")
    assert len(list(model.stream("Hello"))) > 1
    assert isinstance(model.with_structured_output(Weather).invoke("Oslo?"), Weather)
    call = {"name": "weather", "args": {"city": "Oslo", "days": 1}, "id": "abcdefghi"}
    turns = [HumanMessage("Hi"), AIMessage("", tool_calls=[call])]
    assert model.bind_tools(tools).invoke([*turns, ToolMessage("Sun", tool_call_id="abcdefghi")])


def graph(kind: str) -> None:
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(chain(kind), [weather])
    assert len(agent.invoke({"messages": [("user", "Hello")]}, {"recursion_limit": 8})["messages"])


def pydantic_agent(kind: str) -> None:
    from pydantic_ai import Agent

    module, name = ("anthropic", "Anthropic") if kind == "Anthropic" else ("openai", "OpenAI")
    found = __import__(f"pydantic_ai.models.{module}", fromlist=["x"])
    provider = __import__(f"pydantic_ai.providers.{module}", fromlist=["x"])
    made = getattr(provider, f"{name}Provider")(base_url=URL if module == "anthropic" else V1)
    model = getattr(found, f"{kind}Model")(MODEL, provider=made)
    settings: Any = {"max_tokens": MOST, "parallel_tool_calls": False}
    agent = Agent(model, output_type=Weather, model_settings=settings, retries=0)
    assert isinstance(agent.run_sync("The weather in Oslo").output, Weather)


def agents_sdk(kind: str, *, is_streamed: bool = False) -> None:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    async def go() -> list[Any]:
        client = AsyncOpenAI(base_url=V1, api_key="none")
        settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False)
        agent = agents.Agent(
            name="helper",
            model=getattr(agents, f"OpenAI{kind}Model")(MODEL, openai_client=client),
            tools=[agents.function_tool(weather)],
            model_settings=settings,
            tool_use_behavior="stop_on_first_tool",
        )
        if not is_streamed:
            return (await agents.Runner.run(agent, "Hello")).new_items
        run = agents.Runner.run_streamed(agent, "Hello")
        return [each async for each in run.stream_events()] and run.new_items

    assert [type(each).__name__ for each in asyncio.run(go())][-1] == "ToolCallOutputItem"


CASES: dict[str, tuple[str, Callable[[], object]]] = {  # what it needs, and the call
    **{
        f"litellm {kind}": ("litellm", lambda kind=kind, base=base: litellm_calls(kind, base))
        for kind, base in (
            *(("openai", V1), ("hosted_vllm", V1), ("litellm_proxy", V1)),
            *(("anthropic", URL), ("ollama_chat", URL)),
        )
    },
    "litellm responses": ("litellm", litellm_responses),
    "dspy Predict": ("dspy", lambda: dspy_call(lambda d: d.Predict("q -> a")(q="Hi"))),
    "dspy responses": (
        "dspy",
        lambda: dspy_call(lambda d: d.Predict("q -> a")(q="Hi"), "responses"),
    ),
    "dspy ReAct": ("dspy", lambda: dspy_call(dspy_react)),
    **{
        f"instructor {mode}": ("instructor", lambda mode=mode: instructed(mode))
        for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "RESPONSES_TOOLS")
    },
    "instructor PARALLEL_TOOLS": (
        "instructor",
        lambda: instructed("PARALLEL_TOOLS", Iterable[Weather]),
    ),
    "instructor anthropic": ("instructor", instructed_anthropic),
    "smolagents ToolCallingAgent": ("smolagents", lambda: smol("ToolCallingAgent")),
    "smolagents CodeAgent": ("smolagents", lambda: smol("CodeAgent")),
    **{
        f"langchain {kind}": ("langchain_ollama", lambda kind=kind: chained(kind))
        for kind in ("openai", "responses", "anthropic", "ollama")
    },
    **{
        f"langgraph {kind}": ("langgraph", lambda kind=kind: graph(kind))
        for kind in ("openai", "responses", "anthropic")
    },
    **{
        f"pydantic-ai {kind}": ("pydantic_ai", lambda kind=kind: pydantic_agent(kind))
        for kind in ("OpenAIChat", "OpenAIResponses", "Anthropic")
    },
    **{
        f"agents {kind}{' stream' * stream}": (
            "agents",
            lambda kind=kind, stream=stream: agents_sdk(kind, is_streamed=stream),
        )
        for kind in ("Responses", "ChatCompletions")
        for stream in (False, True)
    },
}


def main() -> int:
    worked = tried = 0
    for name, (package, call) in CASES.items():
        if find_spec(package) is None or (WORDS and not any(word in name for word in WORDS)):
            continue
        tried += 1
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever a client raises
            print(f"FAIL  {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)  # noqa: T201
        else:
            worked += 1
            print(f"ok    {name}", flush=True)  # noqa: T201
    print(f"{worked} of {tried} work")  # noqa: T201
    return int(worked < tried)


if __name__ == "__main__":
    sys.exit(main())
