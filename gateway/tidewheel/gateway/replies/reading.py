"""From an engine's events to what the log takes: numbers and ids aside, the client sees what the engine wrote."""

from array import array
from typing import Any

from tidewheel.gateway.observation import ReplyObserver
from tidewheel.gateway.replies.chunks import (
    common_fields,
    finish_reason,
    ids_of,
    is_text_held,
    plain_event,
    prompt_token_ids,
    shows_nothing,
    text_choice,
    token_ids,
    without_token_ids,
)
from tidewheel.gateway.replies.continued import Rewriter
from tidewheel.gateway.replies.shapes import Shape
from tidewheel.gateway.replies.tokenlog import Emission, TokenLog
from tidewheel.gateway.sse import event_data

_LEAVING = frozenset({"shutting_down", "engine_dead"})
_LESSONS = 8  # events of a reply that a shape is looked for in, so that strange ones do not cost twice for ever


class EngineLeavesError(Exception):
    """The engine ended the stream because it must stop; another one can carry on."""


class Reader:
    """Reads one attempt's events; what it learns about the reply goes into its log.

    ``asked`` says that the client wants token ids itself; of a peer's gateway (``is_peer``) any error means that this
    region carries on. A ``rewriter`` turns events of a continuation into the form
    in which the reply began. Ordinary events have a ``_shape``, once it is learnt.
    """

    __slots__ = ("_asked", "_is_peer", "_lessons", "_log", "_observer", "_rewriter", "_shape", "_waiting")

    def __init__(
        self, log: TokenLog, observer: ReplyObserver, *, asked: bool, rewriter: Rewriter | None, is_peer: bool = False
    ) -> None:
        self._is_peer = is_peer
        self._log = log
        self._observer = observer
        self._asked = asked
        self._rewriter = rewriter
        self._waiting: list[int] = []
        self._shape: Shape | None = None
        self._lessons = _LESSONS

    def ordinary(self, event: bytes, *, now: float) -> Emission | None:
        """What ``read`` makes of an event that differs from one before only in its text and token; None for others."""
        if self._shape is None or self._waiting:
            return None
        emission = self._shape.read(event)
        if emission is not None:
            self._observer.note_token(now)
            self._observer.shown_tokens += len(emission.ids)
        return emission

    def read(self, event: bytes, *, now: float) -> list[Emission]:
        """Raises InvalidReplyError for what is no event of such a stream, EngineLeavesError."""
        data = event_data(event)
        if data is None:
            return []  # a comment; heartbeats are ours to send
        parsed = self._observer.parse(data)
        if parsed is None:  # [DONE]
            self._observer.observe(None, now=now)
            return [Emission(plain_event(event, data))]
        if self._rewriter is None and self._log.opening is not None:
            choice = text_choice(parsed)
            if choice is not None:
                plain = plain_event(event, data)
                if self._lessons:
                    self._lessons -= 1
                    self._shape = Shape.of(plain, parsed, asked=self._asked) or self._shape
                return [self._text(choice, plain, now=now)]
        _refuse_leaving(parsed, whatever=self._is_peer)
        if self._rewriter is not None:
            return self._rewritten(parsed, now=now)
        self._observer.observe(parsed, now=now)
        return self._emission(parsed, plain_event(event, data))

    def _text(self, choice: dict[str, Any], event: bytes, *, now: float) -> Emission:
        """What ``_emission`` makes of a chunk from which there is nothing to learn but its text."""
        self._observer.note_token(now)
        ids, held = ids_of(choice), choice.get("text_held") is True
        if ids:
            self._observer.shown_tokens += len(ids)
        if self._asked:
            return Emission(event, ids, held)
        if b'token_ids"' in event:
            event = without_token_ids(event)
        if not ids:
            return Emission(event, *self._take_waiting())
        return Emission(event, [*self._take_waiting()[0], *ids] if self._waiting else ids, held)

    def _emission(self, parsed: dict[str, Any], event: bytes) -> list[Emission]:
        ids, log = token_ids(parsed), self._log
        if log.opening is None:
            self._note_opening(parsed)
        if ids:
            self._observer.shown_tokens += len(ids)
        if finish_reason(parsed) is not None:
            log.finished = True
        if self._asked:
            return [Emission(event, ids, is_text_held(parsed))]
        if not ids:
            return [Emission(without_token_ids(event) if b'token_ids"' in event else event, *self._take_waiting())]
        held = is_text_held(parsed)
        if shows_nothing(parsed):
            self._waiting += ids
            return []
        waiting, _ = self._take_waiting()
        return [Emission(without_token_ids(event), [*waiting, *ids] if waiting else ids, held)]

    def _take_waiting(self) -> tuple[list[int], bool]:
        waiting, self._waiting = self._waiting, []
        return waiting, False

    def _rewritten(self, parsed: dict[str, Any], *, now: float) -> list[Emission]:
        assert self._rewriter is not None
        ids = token_ids(parsed)
        if ids:
            self._observer.shown_tokens += len(ids)
        held = is_text_held(parsed)
        if finish_reason(parsed) is not None:
            self._log.finished = True
        emissions = []
        for chunk, event in self._rewriter.rewrite(parsed):
            self._observer.observe(chunk, now=now)
            emissions.append(event)
        if not emissions:
            self._waiting += ids
            return []
        waiting, _ = self._take_waiting()
        first = Emission(emissions[0], [*waiting, *ids], held)
        return [first, *(Emission(event) for event in emissions[1:])]

    def _note_opening(self, parsed: dict[str, Any]) -> None:
        self._log.opening = common_fields(parsed)
        prompt = prompt_token_ids(parsed)
        if prompt is not None:
            self._log.prompt_ids = array("I", prompt)
            if self._observer.prompt_tokens is None:
                self._observer.prompt_tokens = len(prompt)


def _refuse_leaving(parsed: dict[str, Any], *, whatever: bool) -> None:
    error = parsed.get("error")
    if isinstance(error, dict) and (whatever or error.get("code") in _LEAVING):
        raise EngineLeavesError("the replica is shutting down")
