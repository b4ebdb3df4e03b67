"""Bytes that are requests, and bytes that must not be taken for one: the request smuggling set and its kin."""

PIPELINE = (
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello"
    b"POST /v1/chat%2Fy HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
)

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
REFUSED = {
    "length beside chunked": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunked beside length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "two equal lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "hexadecimal length": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "folded header": HEAD + b"X-A: 1\r\n 2\r\n\r\n",
    "bare CR in a value": HEAD + b"X-A: 1\r2\r\n\r\n",
    "bare LF": b"POST / HTTP/1.1\nHost: a\n\n",
    "space before the colon": HEAD + b"X-A : 1\r\n\r\n",
    "NUL in a value": HEAD + b"X-A: \x00\r\n\r\n",
    "chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "xchunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "junk after a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
    "chunk size too large": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
