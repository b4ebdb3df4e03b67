"""GPT-2's table between bytes and printable characters, in which byte-level vocabularies are written."""

from __future__ import annotations


def _byte_to_char() -> dict[int, str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(printable))
    return dict(sorted(table.items()))


BYTE_TO_CHAR = _byte_to_char()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}
