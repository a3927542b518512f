"""A way through a node's SSH connection to an address that this machine cannot reach: a private socket, pumped."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from k3ctl.errors import K3ctlError


class Stream(Protocol):
    """The far end: a paramiko channel, or in tests a socket."""

    def recv(self, nbytes: int, /) -> bytes:
        """Bytes, or b'' at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""

    def shutdown(self, how: int, /) -> None:
        """End one or both directions."""

    def close(self) -> None:
        """Give it back."""


# Opens a new stream to the address.
Open = Callable[[], Stream]
CHUNK = 65536


class Forward:
    """A Unix socket in a folder of mode 0700 whose connections all end at one far address.

    Not a port on loopback: any user of this machine could use that one. `failure` is the last error of opening the far
    end, for the message to the user: who connects to the socket sees only that it closes.
    """

    def __init__(self, opener: Open) -> None:
        self._open = opener
        self._folder = Path(tempfile.mkdtemp(prefix="k3ctl-fwd-"))
        self.path = str(self._folder / "s")
        self.failure: K3ctlError | None = None
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen(16)
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    def close(self) -> None:
        """No new connections; the folder goes."""
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(near,), name="forward-open", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = self._open()
        except K3ctlError as error:
            self.failure = error
            near.close()
            return
        self.failure = None
        back = threading.Thread(target=_pump, args=(far, near), name="forward-in", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        near.close()
        far.close()


def _pump(source: Stream, sink: Stream) -> None:
    """Bytes from one to the other until the end, which is handed on."""
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
    except OSError:
        pass  # either side went away: the end is handed on below
    try:
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):
        return
