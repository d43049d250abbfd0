"""The server of a page with a 3-D scene: viser, on one address, without its own announcements."""

import io
import socket
from contextlib import closing, redirect_stdout

import viser

from simtrain.errors import ConfigError
from simtrain.view.guard import check_messages, guarding, is_loopback


def check_port(host: str, port: int) -> None:
    """Raise ConfigError unless a page can be served at this address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError) as error:  # a part of the name may be too long
        raise ConfigError(f"--host is {host[:64]!r}, which is no address: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"the web viewer cannot listen on {host}:{port}: {error.strerror}; "
            "choose another with --port, or 0 for any that is free"
        ) from error


class PageServer:
    """Serves a page; a subclass puts a scene and controls on it."""

    def __init__(self, host: str, port: int, title: str) -> None:
        """Start the server, or raise ConfigError; port 0 is any that is free."""
        check_port(host, port)
        with guarding(host), redirect_stdout(io.StringIO()):  # viser announces itself, at length
            self.server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
        check_messages(self.server)
        self._host, self._port = host, self.server.get_port()
        if port and self._port != port:
            self.close()
            raise ConfigError(f"port {port} was taken just now; choose another with --port")
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()

    @property
    def url(self) -> str:
        """Address of the page."""
        everywhere = self._host in ("", "0.0.0.0", "::")
        return f"http://{socket.gethostname() if everywhere else self._host}:{self._port}"

    @property
    def warning(self) -> str | None:
        """A line for the person who starts it, if others can reach the page."""
        if is_loopback(self._host):
            return None
        return f"warning: whoever can reach {self.url} sees it and can steer it (--host)"

    def close(self) -> None:
        """Stop serving."""
        with redirect_stdout(io.StringIO()):
            self.server.stop()
