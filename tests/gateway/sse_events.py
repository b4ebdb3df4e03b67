"""An independent reading of event streams, for checking ours."""


def event_payloads(body: bytes) -> list[bytes]:
    """The data of every event, by the letter of the HTML standard, for streams with LF ends."""
    payloads, data = [], list[bytes]()
    for line in body.split(b"\n"):
        if not line:
            if data:
                payloads.append(b"\n".join(data))
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    return payloads
