"""Fields that clients of OpenAI's routes send out of habit, with the values that change nothing."""

from headway.server.bodies.neutral import Neutral

GENERATING: Neutral = {
    # For the operator of OpenAI's server: nothing of these comes back to the caller.
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user"), str),
    "metadata": dict,
    "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
    "service_tier": ("auto", "default"),
    "store": (False,),
    # vLLM's, at its defaults.
    **dict.fromkeys(("allowed_token_ids", "bad_words"), ([],)),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "use_beam_search": (False,),
}
CHAT: Neutral = {
    **GENERATING,
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    **dict.fromkeys(("continue_final_message", "echo"), (False,)),
    "documents": ([],),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    # Without tools it does not matter how they would be called; and `tools` with any is refused.
    **dict.fromkeys(("functions", "tools"), ([],)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "parallel_tool_calls": (False, True),
}
COMPLETION: Neutral = {**GENERATING, "best_of": (1,), "suffix": ("",)}
# `cache_control` is Anthropic's: prefixes are shared without it. The others are parts of an answer
# that clients send back.
MESSAGE: Neutral = {
    **dict.fromkeys(("annotations", "tool_calls"), ([],)),
    "cache_control": dict,
    "reasoning_content": ("",),
}
PART: Neutral = {"annotations": ([],), "cache_control": dict}
