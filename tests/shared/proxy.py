"""The network between a process and a server, to be cut and led elsewhere. No test lives here."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Proxy:
    """Passes connections on to ``port`` of this host. While it is cut, nothing passes and nothing is said."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._is_cut = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_over = False
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?name=gpu0"

    def cut(self) -> None:
        self._is_cut = True

    def mend(self) -> None:
        self._is_cut = False

    def point_at(self, port: int) -> None:
        """New connections lead to ``port``; those that are open are closed."""
        self.target = port
        for each in list(self._pairs):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(5)
        for each in (*self._pairs, self._listener):
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over:
            ready = self._selector.select(0.05)
            while self._is_cut and not self._is_over:
                threading.Event().wait(0.01)
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass_on(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), 2)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(65536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for each in (one, other):
            del self._pairs[each]
            self._selector.unregister(each)
            each.close()
