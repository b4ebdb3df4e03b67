"""Answers of replicas as bytes, and who listens to them."""

from tidewheel.gateway.settings import Settings
from tidewheel.gateway.upstream import BrokenError, Headers, Pool, UpstreamConnection


class FakeTransport:
    """Takes what is written, and notes that it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def writelines(self, pieces: object) -> None:
        assert not self.closed

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class Recorder:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.ends: list[str] = []

    def on_head(self, status: int, headers: Headers) -> None:
        assert not self.ends
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        assert not self.ends
        self.body += data

    def on_end(self) -> None:
        self.ends.append("complete")

    def on_broken(self, error: BrokenError) -> None:
        self.ends.append("untouched" if error.untouched else "broken")

    def on_read(self) -> None:
        pass


def hear(*reads: bytes, hang_up: bool = True, reset: bool = False) -> tuple[Recorder, UpstreamConnection]:
    """What a listener hears of an answer that comes in these reads."""
    connection, recorder = UpstreamConnection(Pool("127.0.0.1", 1, settings=Settings(max_header_bytes=300))), Recorder()
    transport = FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.send([b"GET / HTTP/1.1\r\n\r\n"], recorder)
    for read in reads:
        position = 0
        while position < len(read) and not transport.closed:
            position += receive(connection, read[position:])
    if hang_up:
        connection.connection_lost(ConnectionResetError() if reset else None)
    return recorder, connection


def receive(connection: UpstreamConnection, data: bytes) -> int:
    """One read of as much as the connection takes at once: how much that was."""
    buffer = connection.get_buffer(-1)
    size = min(len(buffer), len(data))
    buffer[:size] = data[:size]
    connection.buffer_updated(size)
    return size


CHUNKED = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\nhello world"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + LENGTH
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nhello world"
