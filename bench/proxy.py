"""A wire between a client and PostgreSQL that counts round trips and bytes, and can be long.

    python -m bench.proxy HOST PORT

It prints its port, then answers each line on standard input with its counters as JSON; a line with a number first sets the delay
to so many milliseconds. A round trip is what a client sends until
the server says ReadyForQuery: several messages that travel together are one. The delay is added to the way there.
Threads and blocking sockets, because timers of an event loop are no finer than a millisecond.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

CHUNK = 1 << 16
READY = ord("Z")
SSL_REQUEST = 80877103
LENGTH = 5  # a message: one byte of type, four of length


class Counters:
    """What all connections did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.round_trips = 0
        self.sent = 0
        self.received = 0
        self.delay_s = 0.0

    def add(self, *, round_trips: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.round_trips += round_trips
            self.sent += sent
            self.received += received

    def line(self) -> str:
        with self._lock:
            return json.dumps({"round_trips": self.round_trips, "sent": self.sent, "received": self.received})


class Messages:
    """Finds the types of messages in a stream, however it is cut."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._skip = 0

    def ready(self, chunk: bytes) -> int:
        """How many times the server said that it is ready."""
        found = place = 0
        while place < len(chunk):
            if self._skip:
                step = min(self._skip, len(chunk) - place)
                self._skip -= step
                place += step
                continue
            need = LENGTH - len(self._head)
            self._head += chunk[place : place + need]
            place += need
            if len(self._head) == LENGTH:
                found += self._head[0] == READY
                self._skip = int.from_bytes(self._head[1:], "big") - 4
                self._head.clear()
        return found


class Wire:
    """One connection."""

    def __init__(self, client: socket.socket, server: socket.socket, counters: Counters) -> None:
        self._client, self._server, self._counters = client, server, counters
        self._spoke = False
        self._messages = Messages()
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for run in (self._there, self._back):
            threading.Thread(target=run, daemon=True).start()

    def _there(self) -> None:
        while chunk := received(self._client):
            if self._counters.delay_s:
                time.sleep(self._counters.delay_s)
            self._spoke = True
            self._counters.add(sent=len(chunk))
            self._server.sendall(chunk)
        closed(self._server)

    def _back(self) -> None:
        while chunk := received(self._server):
            trips = 1 if self._messages.ready(chunk) and self._spoke else 0
            if trips:
                self._spoke = False
            self._counters.add(round_trips=trips, received=len(chunk))
            self._client.sendall(chunk)
        closed(self._client)


def received(source: socket.socket) -> bytes:
    try:
        return source.recv(CHUNK)
    except OSError:
        return b""


def closed(target: socket.socket) -> None:
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side was faster


def accept(listener: socket.socket, host: str, port: int, counters: Counters) -> None:
    """Every client gets a connection of its own to the server. A wish for TLS is declined: we read what is said."""
    while True:
        client, _ = listener.accept()
        first = client.recv(8, socket.MSG_PEEK)
        if len(first) == 8 and int.from_bytes(first[4:], "big") == SSL_REQUEST:
            client.recv(8)
            client.sendall(b"N")
        Wire(client, socket.create_connection((host, port)), counters).start()


def main(host: str, port: int) -> None:
    """Serve until standard input ends."""
    counters = Counters()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept, args=(listener, host, port, counters), daemon=True).start()
    for line in sys.stdin:
        if line.strip():
            counters.delay_s = float(line) / 1000
        print(counters.line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
