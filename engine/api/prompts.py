"""From the prompt forms of the API to token ids, with the checks that need the model: vocabulary and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..text.chat import ChatTemplate, ChatTemplateError
from ..text.tokenizer import Tokenizer, TooManyTokens
from .bodies import ChatBody, Message, TokenizeBody
from .errors import MAX_CHOICES, bad_request, context_exceeded, too_many_choices
from .long_work import LongWork

LONG_TEXT = 32_768  # characters; from here on tokenizing takes long enough to be kept off the event loop
MOST_TEXT = 1 << 20  # characters that are tokenized at the same time; a longer text alone
ROLES = ("system", "developer", "user", "assistant")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the engine takes it; `text` is None where it came as token ids."""

    ids: tuple[int, ...]
    text: str | None


class PromptReader:
    """Turns prompts into token ids for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        vocab_size: int,
        max_model_len: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._long = LongWork(MOST_TEXT)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, for what cannot be done without one."""
        if self._tokenizer is None:
            raise bad_request(
                "this model's folder has no tokenizer.json: send prompts as token ids to /v1/completions, without text",
                code="no_tokenizer",
            )
        return self._tokenizer

    async def completion(self, prompt: str | list[str | int | list[int]], add_special: bool) -> list[Prompt]:
        """The one or several prompts of `/v1/completions`."""
        if isinstance(prompt, str):
            return await self._off_loop(len(prompt), lambda: [self._text(prompt, add_special, "prompt")])
        if not prompt:
            raise bad_request("'prompt' is empty", "prompt", "invalid_value")
        if isinstance(prompt[0], int) and len(prompt) >= self._max_model_len:
            raise context_exceeded(len(prompt), None, self._max_model_len, "prompt")
        ids = [item for item in prompt if isinstance(item, int)]
        texts = [item for item in prompt if isinstance(item, str)]
        lists = [item for item in prompt if isinstance(item, list)]
        if len(prompt) not in (len(ids), len(texts), len(lists)):
            raise bad_request(
                "'prompt' mixes forms: give one text, one list of token ids, a list of texts or a list of such lists",
                "prompt",
                "invalid_value",
            )
        if ids:
            return [self.ids(ids, "prompt")]
        if len(prompt) > MAX_CHOICES:
            raise too_many_choices(len(prompt), 1)
        if lists:
            return [self.ids(item, f"prompt[{i}]") for i, item in enumerate(lists)]
        return await self._off_loop(
            sum(map(len, texts)),
            lambda: [self._text(text, add_special, f"prompt[{i}]") for i, text in enumerate(texts)],
        )

    async def encode(self, text: str, add_special: bool) -> list[int]:
        """Token ids of any text, also of none."""
        tokenizer = self.tokenizer
        return await self._off_loop(len(text), lambda: tokenizer.encode(text, add_special=add_special))

    async def strings(self, ids: Sequence[int]) -> list[str | None]:
        """Each token as the tokenizer writes it."""
        inner = self.tokenizer.inner
        return await self._off_loop(len(ids), lambda: [inner.id_to_token(i) for i in ids])

    def _text(self, text: str, add_special: bool, param: str) -> Prompt:
        return self._encoded(self._prompt_ids(text, add_special, "prompt"), text, param)

    def _prompt_ids(self, text: str, add_special: bool, param: str) -> list[int]:
        """The tokens of a prompt that leaves room for one of output."""
        try:
            return self.tokenizer.encode(text, add_special=add_special, most=self._max_model_len - 1)
        except TooManyTokens as error:
            raise context_exceeded(error.count, None, self._max_model_len, param) from None

    def _encoded(self, ids: list[int], text: str | None, param: str) -> Prompt:
        """A prompt from the tokenizer, which may know more tokens than the model has weights for."""
        if not ids:
            raise bad_request(f"'{param}' has no tokens", param, "invalid_value")
        if (worst := max(ids)) >= self._vocab_size:
            name = self.tokenizer.inner.id_to_token(worst)
            last = self._vocab_size - 1
            raise bad_request(
                f"'{param}' holds '{name}', which is token {worst}; this model's token ids end at {last}",
                param,
                "invalid_value",
            )
        return Prompt(tuple(ids), text)

    def ids(self, ids: Sequence[int], param: str) -> Prompt:
        if not ids:
            raise bad_request(f"'{param}' is empty", param, "invalid_value")
        worst = max(ids)
        if worst >= self._vocab_size:
            raise bad_request(
                f"'{param}[{list(ids).index(worst)}]' is {worst}; this model's token ids end at {self._vocab_size - 1}",
                param,
                "invalid_value",
            )
        return Prompt(tuple(ids), None)

    async def chat(self, body: ChatBody | TokenizeBody) -> Prompt:
        """The prompt of a chat: the model's own template over the messages."""
        tokenizer = self.tokenizer
        template = self._template
        if template is None:
            raise bad_request(
                "this model has no chat template: use /v1/completions", "messages", "no_chat_template"
            )
        messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(body.messages or ())]
        continues = bool(body.continue_final_message)
        add_generation_prompt = (
            not continues if body.add_generation_prompt is None else body.add_generation_prompt
        )

        def encode() -> list[int]:
            text = template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continues,
                variables=body.chat_template_kwargs,
            )
            add_special = bool(body.add_special_tokens)
            if isinstance(body, TokenizeBody):  # counted, however many there are
                return tokenizer.encode(text, add_special=add_special)
            return self._prompt_ids(text, add_special, "messages")

        try:
            ids = await self._off_loop(_size(messages), encode)
        except ChatTemplateError as error:
            raise bad_request(str(error), "messages", "invalid_value") from None
        return self._encoded(ids, None, "messages")

    async def _off_loop(self, size: int, work: Callable[[], Result]) -> Result:
        """`work` here when it is short, else in a thread: the event loop serves every other stream meanwhile."""
        return await self._long.run(size, work) if size >= LONG_TEXT else work()


def _plain(message: Message, param: str) -> dict[str, Any]:
    """A message as templates read it. `developer` is OpenAI's newer word for `system`; templates know the older."""
    if message.role not in ROLES:
        raise bad_request(
            f"'{param}.role' is '{message.role}'; served are {', '.join(ROLES)}",
            f"{param}.role",
            "invalid_value",
        )
    role = "system" if message.role == "developer" else message.role
    if message.content is None and role != "assistant":  # clients write null for an answer that was empty
        raise bad_request(f"'{param}.content' is required", f"{param}.content", "missing_required_parameter")
    if not isinstance(message.content, list):
        return {"role": role, "content": message.content or ""}
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            where = f"{param}.content[{i}]"
            raise bad_request(
                f"'{where}' has type '{part.type}'; this model reads parts of type 'text' with a 'text'",
                f"{where}.type",
                "invalid_value",
            )
    return {"role": role, "content": [{"type": "text", "text": part.text} for part in message.content]}


def _size(messages: list[dict[str, Any]]) -> int:
    """Characters that the template writes, about."""
    contents = [message["content"] for message in messages]
    return 16 * len(messages) + sum(
        len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)
        for content in contents
    )
