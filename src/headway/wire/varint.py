"""How Protocol Buffers write a number: seven bits a byte, the lowest first."""

_SHORT = [bytes((number,)) for number in range(128)]


def varint(number: int) -> bytes:
    if number < 128:
        return _SHORT[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
