"""A reply in the making: the choices of one HTTP request, fed by the step loop, read by the response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidewheel.engine.errors import RequestError
from tidewheel.engine.request import FinishReason, Logprobs, Output, Request
from tidewheel.engine.text import TextStream
from tidewheel.engine.tool_parser import CallPiece, ToolParser


class Delta(NamedTuple):
    """Something new about one choice: text, token ids, or its end."""

    choice: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: tuple[Logprobs, ...] = ()  # one for each of token_ids, if asked for
    calls: tuple[CallPiece, ...] = ()
    is_text_held: bool = False  # some text of the tokens so far is still to come


@dataclass(slots=True)
class Choice:
    index: int
    request: Request
    prompt: list[int]
    text: TextStream
    tools: ToolParser | None = None
    num_tokens: int = 0
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Reply:
    """Belongs to the event loop. `abort` tells the engine to give up a request; calling it twice is harmless."""

    abort: Callable[[Request, FinishReason], None]
    choices: list[Choice] = field(default_factory=list)
    parent: Mapping[str, str] = field(default_factory=dict)  # headers that say which trace it belongs to
    _inbox: list[Output] = field(default_factory=list)
    _interruption: RequestError | None = None
    _waiter: asyncio.Future[None] | None = None

    def push(self, output: Output) -> None:
        self._inbox.append(output)
        self._notify()

    def interrupt(self, error: RequestError) -> None:
        """End the reply from outside: the client has gone, or the process must."""
        self._interruption = self._interruption or error
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Everything new since the last turn. Ends when every choice has; raises what ended the reply early."""
        num_open = len(self.choices)
        by_request = {choice.request: choice for choice in self.choices}
        while num_open:
            if not self._inbox and self._interruption is None:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._interruption is not None:
                raise self._interruption
            outputs, self._inbox = self._inbox, []
            batch: list[Delta] = []
            for output in outputs:
                choice = by_request[output.request]
                if not choice.is_open:
                    continue
                try:
                    delta = self._delta(choice, output)
                except RequestError:
                    # What came before the failure was produced, so it is shown.
                    if batch:
                        yield batch
                    raise
                num_open -= not choice.is_open
                batch.append(delta)
            yield batch

    def close(self) -> None:
        """Give back whatever the engine still holds for this reply."""
        for choice in self.choices:
            if choice.is_open:
                choice.is_open = False
                self.abort(choice.request, FinishReason.ABORTED)

    @property
    def is_finished(self) -> bool:
        return not any(choice.is_open for choice in self.choices)

    @property
    def requests(self) -> list[Request]:
        return [choice.request for choice in self.choices]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(choice.request.num_prompt for choice in self._distinct_prompts())

    @property
    def num_cached_tokens(self) -> int:
        return sum(choice.request.num_cached for choice in self._distinct_prompts())

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def _distinct_prompts(self) -> list[Choice]:
        """With n > 1 the choices of one prompt share its list of ids; it counts once."""
        return list({id(choice.prompt): choice for choice in reversed(self.choices)}.values())

    def _delta(self, choice: Choice, output: Output) -> Delta:
        text, stopped = "", False
        ids: list[int] = []
        logprobs = () if output.logprobs is None else (output.logprobs,)
        if output.token_id is not None:
            ids.append(output.token_id)
            choice.num_tokens += 1
            text, stopped = choice.text.feed(output.token_id)
        if stopped:
            choice.is_open = False
            if output.finish_reason is None:
                self.abort(choice.request, FinishReason.STOP)
            return _delta(choice, text, ids, FinishReason.STOP, logprobs)
        if output.finish_reason is None:
            delta = _delta(choice, text, ids, None, logprobs)
            return delta._replace(is_text_held=True) if choice.text.holds_back else delta
        choice.is_open = False
        if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            return _delta(choice, text + choice.text.finish(), ids, output.finish_reason, logprobs)
        raise output.error or RequestAbortedError()


def _delta(
    choice: Choice, text: str, ids: list[int], reason: FinishReason | None, logprobs: tuple[Logprobs, ...]
) -> Delta:
    if choice.tools is None:
        return Delta(choice.index, text, ids, reason, logprobs)
    text, pieces = choice.tools.feed(text)
    finish_reason: str | None = reason
    if reason is not None:
        held, more = choice.tools.finish()
        text, pieces = text + held, [*pieces, *more]
        if reason is FinishReason.STOP and choice.tools.num_calls:
            finish_reason = "tool_calls"
    return Delta(choice.index, text, ids, finish_reason, logprobs, tuple(pieces))


class RequestAbortedError(RequestError):
    """Somebody asked for it through POST /abort."""

    status = 499
    type = "invalid_request_error"
    code = "request_aborted"

    def __init__(self) -> None:
        super().__init__("This request was aborted by POST /abort.")
