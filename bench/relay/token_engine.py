"""The synthetic engine with token ids: it carries on with a reply that began on another, as a real one does.

``max_tokens`` words are written, ``rate`` a second; the n-th word is the n-th token, so the text is known beforehand.
The completions route takes the prompt's ids and those of the words so far. It prints its port and runs until it is
killed: ``python -m bench.relay.token_engine --rate 2``.
"""

import argparse
import asyncio
import json
from typing import Any

import uvloop
from bench.relay.synthetic_engine import END, WHOLE, Connection, chunk

PROMPT_IDS = [11, 12, 13]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_COMMON = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "chat"}


def whole_text(tokens: int) -> str:
    """The text of a reply that nobody disturbed."""
    return "".join(f" word{number}" for number in range(tokens))


class TokenConnection(Connection):
    """One connection; its stream is a row of words."""

    rate = 2.0

    def _answer(self, asked: dict[str, Any]) -> None:
        assert self._transport is not None
        if not asked.get("stream"):
            self._transport.write(WHOLE)
            return
        self._chat = "messages" in asked
        self._next = 0 if self._chat else len(asked["prompt"]) - len(PROMPT_IDS)
        self._left = asked["max_tokens"]
        self._interval = 1 / self.rate
        ids = {"prompt_token_ids": PROMPT_IDS if self._chat else asked["prompt"]}
        opening = _event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], **ids)
        self._transport.write(_HEAD + (opening if self._chat else b"") + self._word(**({} if self._chat else ids)))
        self._due = asyncio.get_running_loop().time() + self._interval
        self._streams.add(self)

    def _word(self, **extra: Any) -> bytes:
        number = self._next
        self._next, self._left = number + 1, self._left - 1
        text = f" word{number}"
        said: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        return _event([{"index": 0, **said, "finish_reason": None, "token_ids": [number], **extra}])

    def send_due(self, now: float) -> None:
        """The words that are due."""
        assert self._transport is not None
        while self._left and self._due <= now:
            self._transport.write(self._word())
            self._due += self._interval
        if not self._left:
            self._streams.discard(self)
            said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            self._transport.write(_event([{"index": 0, **said, "finish_reason": "length", "token_ids": []}]) + END)


def _event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    text = json.dumps({**_COMMON, "choices": choices, **fields}, separators=(",", ":"))
    return chunk(f"data: {text}\n\n".encode())


async def _main(rate: float) -> None:
    streams: set[Connection] = set()
    loop = asyncio.get_running_loop()
    TokenConnection.rate = rate
    server = await loop.create_server(lambda: TokenConnection(streams), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        for stream in list(streams):
            stream.send_due(loop.time())
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=2.0, help="words a second of one stream")
    uvloop.run(_main(parser.parse_args().rate))
