"""A served model's text side, off the event loop: prompts to tokens, tokens to text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.core.generation.options import GenerationOptions
from headway.errors import InputTooLarge, InvalidInput, QueueFull
from headway.models.chat.answer_reader import AnswerReading
from headway.models.chat.chats import ChatPrompt
from headway.models.chat.grammars import Vocabulary, with_answer
from headway.models.chat.spelling import BYTES
from headway.models.chat.text import ChatText, RenderedChat
from headway.models.chat.tokenizer import encoding_of
from headway.models.chat.tool_grammar import grammar_of_tools, thinking_rules
from headway.models.chat.trials import Trials
from headway.runtime.calling.threads import ThreadPool, current_client

_MOST_TRIED = 2  # grammars at a time: one may take a quarter of a second of a core
_MOST_WAITING = 64  # of one client, for their turn; more are refused
_SHORT = 2000  # characters: tokenised in less time than a thread takes to start
_MESSAGE = 16  # that a template writes around each message, about
# Threads for short texts, and as many for long ones: while one takes its time, others have the
# second. Clients take turns.
_HELPERS = 2


class PreparedChat(NamedTuple):
    ids: list[int]
    grammar: str  # of the answer; empty: any text
    reading: AnswerReading | None  # None: the answer is text


class Language:
    def __init__(
        self, text: ChatText, *, vocabulary: int, max_context: int, has_grammars: bool = True
    ) -> None:
        """`has_grammars`: the engine can restrict the next token."""
        self.text = text
        self.vocabulary = vocabulary
        self.max_context = max_context
        self._tokens = _token_bytes(text)
        self._helpers = ThreadPool(_HELPERS, "headway-text")
        self._long = ThreadPool(_HELPERS, "headway-long-text")
        self._trials = Trials(self._vocabulary)
        self._trying = ThreadPool(_MOST_TRIED, "headway-grammar")
        self._waiting: dict[str, int] = {}  # grammars, by client
        self._has_grammars = has_grammars
        self._longest = max(map(len, self._tokens.values()), default=1)  # bytes

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options that the model's makers recommend."""
        return self.text.defaults

    async def read(self, prompt: Any) -> list[int]:
        """A text, a chat's messages or token ids as tokens. Raises InvalidInput, InputTooLarge."""
        if isinstance(prompt, str):
            return await self.encode(prompt)
        if _is_chat(prompt):
            return (await self.render(ChatPrompt(prompt))).ids
        return self.tokens_of(prompt)

    def tokens_of(self, prompt: Any) -> list[int]:
        """The tokens that `read` gives, computed in the caller's thread."""
        if isinstance(prompt, str):
            self._check_text(prompt, "prompt")
            return self._encode(prompt, True)
        if _is_chat(prompt):
            return self.text.encode_chat(prompt)
        if not isinstance(prompt, list | tuple):
            expected = "a text, token ids or messages are expected"
            raise InvalidInput(f"prompt: {expected}, not {prompt!r:.40}")
        self.check_ids(prompt, "prompt")
        return list(prompt)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A text as it is. Raises InvalidInput, InputTooLarge."""
        self._check_text(text, "prompt")
        if len(text) <= _SHORT:
            return self._encode(text, add_special_tokens)
        return await self._long.run(self._encode, text, add_special_tokens)

    async def render(self, chat: ChatPrompt) -> RenderedChat:
        """A chat through the model's template."""
        size = 0
        for index, message in enumerate(chat.messages):
            content = str(message.get("content") or "")
            self._check_text(content, f"messages[{index}].content")
            size += len(content) + (_MESSAGE if _is_plain(message) else _SHORT)
        if chat.tools is not None or chat.variables:
            size += _SHORT
        threads = self._helpers if size <= _SHORT else self._long
        return await threads.run(self._rendered, chat)

    def _rendered(self, chat: ChatPrompt) -> RenderedChat:
        """Tokenising may take hundreds of bytes for each: what can never fit is not tokenised."""
        said = sum(len(str(message.get("content") or "")) for message in chat.messages)
        is_for_tools = chat.tools is not None and said <= self.max_context
        field = "tools" if is_for_tools else "messages"  # which of them is too long
        return self.text.render(chat, check=lambda text: self._check_text(text, field))

    async def prepare(self, chat: ChatPrompt, grammar: str = "", field: str = "") -> "PreparedChat":
        """A chat's tokens, and the grammar and the reading of its answer. `grammar`: of the answer
        after its thoughts; `field`: that asked for it. Raises InvalidInput, InputTooLarge,
        QueueFull, NotReady."""
        text = self.text
        use = chat.tools
        rendered = await self.render(chat)
        thinking = None if rendered.has_thought else text.thinking
        rules = thinking_rules(thinking, is_open=rendered.is_thinking) if thinking else []
        if use is not None:
            grammar, field = grammar_of_tools(use, text.convention, rules, grammar), "tools"
        elif grammar and rules:
            grammar = with_answer(["start: thoughts @answer", *rules], grammar)
        if grammar:
            await self.check_grammar(grammar, field)
        if use is None and text.thinking is None:
            return PreparedChat(rendered.ids, grammar, None)
        convention = None if use is None else text.convention
        markers = [] if convention is None else convention.markers
        markers += [] if thinking is None else [*thinking]
        shown = {each.id: each.shown for each in markers if each.id is not None and each.is_special}
        reading = AnswerReading(convention, thinking, is_thinking=rendered.is_thinking, shown=shown)
        return PreparedChat(rendered.ids, grammar, reading)

    def close(self) -> None:
        self._helpers.close()
        self._long.close()
        self._trying.close()
        self._trials.close()

    async def check_grammar(self, grammar: str, field: str) -> None:
        """Try the grammar, off the event loop. Raises InvalidInput, QueueFull, NotReady."""
        if not self._has_grammars:
            raise InvalidInput(f"{field}: the engine of this model has no grammars")
        if not self.text.stop_ids:
            raise InvalidInput(f"{field}: the model has no token that ends a text")
        why = self._trials.known(grammar)
        if why is None:
            why = await self._try_grammar(grammar)
        if why:
            raise InvalidInput(f"{field}: {why}")

    def _vocabulary(self) -> Vocabulary:
        ends = tuple(sorted(self.text.stop_ids))
        return Vocabulary(self.text.tokenizer.to_str(), self.vocabulary, ends)

    async def _try_grammar(self, grammar: str) -> str:
        client = current_client.get()
        count = self._waiting.get(client, 0)
        if count >= _MOST_WAITING:
            raise QueueFull(f"{count} of your grammars wait to be tried", limit=_MOST_WAITING)
        self._waiting[client] = count + 1
        try:
            return await self._trying.run(self._trials.why_not, grammar)
        finally:
            left = self._waiting.pop(client) - 1
            if left:
                self._waiting[client] = left

    def check_named(self, options: GenerationOptions) -> None:
        """Refuse token ids of a caller that the model does not have."""
        self.check_ids(tuple(options.sampling.logit_bias), "logit_bias")
        self.check_ids(tuple(options.stop_ids), "stop_token_ids")

    def check_ids(self, ids: Sequence[Any], field: str) -> None:
        for each in ids:
            if type(each) is not int:
                raise InvalidInput(f"{field}: {each!r:.40} is not a token id")
            if not 0 <= each < self.vocabulary:
                raise InvalidInput(f"{field}: the model has no token {each}")

    def decode(self, ids: Sequence[int]) -> str:
        found: str = self.text.tokenizer.decode(ids, skip_special_tokens=False)
        return found

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character."""
        return self._tokens.get(token, b"")

    def name_of(self, token: int) -> str:
        """The token as the vocabulary writes it."""
        return self.text.tokenizer.id_to_token(token) or ""

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        tokenizer = self.text.tokenizer
        ids: list[int] = encoding_of(tokenizer, text, add_special_tokens=add_special_tokens).ids
        return ids

    def _check_text(self, text: str, field: str) -> None:
        """A text that can never fit is refused before it is tokenised."""
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidInput(f"{field}: holds half of a surrogate pair") from None
        least = -(-size // self._longest)
        if least > self.max_context:
            raise InputTooLarge(
                f"{field}: at least {least} tokens; the model's context is {self.max_context}",
                limit=self.max_context,
            )


def _token_bytes(text: ChatText) -> dict[int, bytes]:
    """The bytes of every token, which vocabularies write in alphabets of their own."""
    tokenizer = text.tokenizer
    added = {id_: each.content for id_, each in tokenizer.get_added_tokens_decoder().items()}
    is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str()).get("decoder"))
    letters = BYTES if is_byte_level else {}
    found = {}
    for token, id_ in tokenizer.get_vocab(with_added_tokens=False).items():
        if letters and all(letter in letters for letter in token):
            found[id_] = bytes(letters[letter] for letter in token)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            found[id_] = bytes([int(token[3:5], 16)])
        else:
            found[id_] = token.replace("▁", " ").encode()
    return found | {id_: content.encode() for id_, content in added.items()}


def _is_chat(prompt: Any) -> bool:
    """An empty list is a chat without messages."""
    is_list = isinstance(prompt, list | tuple)
    return is_list and all(isinstance(each, Mapping) for each in prompt)


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Whether a message has only content, a role and perhaps a name: other fields may be long."""
    others = (value for field, value in message.items() if field != "content")
    return all(value is None or (isinstance(value, str) and len(value) <= 64) for value in others)
