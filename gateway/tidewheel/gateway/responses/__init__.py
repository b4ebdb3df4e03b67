"""``/v1/responses``: the part of OpenAI's Responses API that text, background work and resuming need.

A response is a reply of ``replies`` like any other: ``asking`` turns its request into one for chat, the log keeps the
chat stream's events, and ``fold`` tells them as Responses events. The fold is a pure function of the log, so that every
gateway shows the same events under the same sequence numbers, whenever it is asked.
"""
