"""The server of a page with a 3-D scene: viser, on one address, closed to other web pages.

A browser lets any page of the web send requests to this machine. Therefore a request must be to
this machine by its address or name (DNS rebinding sends another), and from a page of the same
address. viser accepts any value that a page sends for a control; here values are checked. So other
pages cannot control the viewer, and users who control it cannot end it.
"""

import io
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import viser
import viser.infra
import websockets.asyncio.server
from viser._messages import CommandTriggerMessage, GuiUpdateMessage
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from simtrain.errors import ConfigError


class PageServer:
    """Serves a page; a subclass puts a scene and controls on it."""

    def __init__(self, host: str, port: int, title: str) -> None:
        """Start the server, or raise ConfigError; port 0 is any free port."""
        check_port(host, port)
        with _guarding(host), redirect_stdout(io.StringIO()):  # viser announces itself, at length
            self.server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
        _check_messages(self.server)
        self._host = host
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()

    @property
    def url(self) -> str:
        """Address of the page."""
        everywhere = self._host in ("", "0.0.0.0", "::")
        name = socket.gethostname() if everywhere else self._host
        return f"http://{name}:{self.server.get_port()}"

    def announce(self, what: str) -> None:
        """Print the address of `what`, and a warning if others can open the page."""
        if not is_loopback(self._host):
            text = f"warning: anyone who can reach {self.url} sees it and can steer it (--host)"
            print(text, file=sys.stderr)
        print(f"watch {what} at {self.url} (Ctrl-C ends)", flush=True)

    def close(self) -> None:
        """Stop serving."""
        with redirect_stdout(io.StringIO()):
            self.server.stop()


def check_port(host: str, port: int) -> None:
    """Raise ConfigError unless a page can be served at this address."""
    try:
        options: Any = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
        family, *_, address = socket.getaddrinfo(host, port, **options)[0]
        socket.create_server(address, family=family).close()
    except (socket.gaierror, UnicodeError) as error:  # a part of the name may be too long
        raise ConfigError(f"--host is {host[:64]!r}, which is no address: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"the web viewer cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; "
            "choose another with --port, or 0 for any that is free"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address on which a server listens."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> set[str]:
    """The names of a server that listens on `host`, in lower case."""
    own = set() if is_loopback(host) else {socket.gethostname(), socket.getfqdn()}
    return {name.lower() for name in {"localhost", host, *own}}


def refusal(headers: Headers, names: set[str]) -> str | None:
    """Why a request to a server of these names is refused; None if it is accepted."""
    hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
    try:
        (host,) = hosts
        name = urlsplit(f"//{host}").hostname or ""
        known = name in names or bool(ipaddress.ip_address(name))  # an address needs no DNS
    except ValueError:
        known = False
    if not known:
        return "This is not the viewer's name. Open it by its address, or as localhost.\n"
    if origins and [origin.partition("://")[2] for origin in origins] != hosts:
        return "Another page may not use the viewer.\n"
    return None


@contextmanager
def _guarding(host: str) -> Iterator[None]:
    """Make viser's servers that start meanwhile, on `host`, refuse requests of others."""
    names = names_of(host)

    def guarded_serve(*args: Any, process_request: Any, **options: Any) -> Any:
        def check(connection: ServerConnection, request: Request) -> Response | None:
            if (text := refusal(request.headers, names)) is not None:
                return connection.respond(HTTPStatus.FORBIDDEN, text)
            response: Response | None = process_request(connection, request)
            if response is not None:
                # Inside another page, a click on that could be one on this.
                response.headers["X-Frame-Options"] = "SAMEORIGIN"
            return response

        return serve(*args, process_request=check, **options)

    # They would show a traceback for every request and message that they do not understand.
    for name in ("websockets.server", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    module: Any = websockets.asyncio.server
    serve, module.serve = module.serve, guarded_serve
    try:
        yield
    finally:
        module.serve = serve


def _check_messages(server: viser.ViserServer) -> None:
    """Accept only keys, and messages that set a control to one of its possible values.

    Other messages could publish the page on the Internet or fill the memory with files.
    """
    receiver: Any = server._websock_server
    handle_message = receiver._handle_incoming_message

    async def check(client: int, message: viser.infra.Message) -> None:
        if isinstance(message, GuiUpdateMessage) and isinstance(message.uuid, str):
            control = server.gui._gui_input_handle_from_uuid.get(message.uuid)
            if _is_possible(control, message.updates):
                await handle_message(client, message)
        elif isinstance(message, CommandTriggerMessage) and isinstance(message.uuid, str):
            await handle_message(client, message)

    receiver._handle_incoming_message = check


def _is_possible(control: object, updates: object) -> bool:
    """Whether a page can change a control in this way."""
    if not isinstance(updates, dict) or list(updates) != ["value"]:
        return False
    match control, updates["value"]:
        case (viser.GuiButtonHandle() | viser.GuiCheckboxHandle(), bool()):
            possible = True
        case (viser.GuiDropdownHandle(), str() as value):
            possible = value in control.options
        case (viser.GuiSliderHandle(), value):
            possible = _is_number(value, control.min, control.max)
        case (viser.GuiRgbHandle(), [_, _, _] as values):
            possible = all(_is_number(part, 0, 255) for part in values)
        case _:
            return False
    return possible and not control.disabled


def _is_number(value: object, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high  # type: ignore[operator]
