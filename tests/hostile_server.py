"""A server that says what it is told to, whatever it is asked."""

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def answering(*parts: bytes, for_ever: bool = False) -> Iterator[str]:
    """The URL of a server that says this to whoever comes, once or for ever."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    for part in parts:
                        connection.sendall(part)
                    while for_ever:
                        connection.sendall(parts[-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
