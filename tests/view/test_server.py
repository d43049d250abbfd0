"""A page of another site, and whoever sends what a page would not, against the real viewer."""

import http.client
from contextlib import closing

import msgspec
import pytest
import viser
import zstandard
from rover import playing
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from simtrain.view.server import PageServer, names_of, refusal

PATIENCE_S = 100.0
WRONG = [None, True, -1, 2**64 - 1, 1e300, float("nan"), "", "x", "2/1", "__class__", b"x", [],
         [1, 2, 3], {"a": 1}]  # fmt: skip
ODD = [{"update_cb": 1}, {"props": {}}, {"value": "1", "removed": True}, [1], None]


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Port of a viewer, which must still serve in the end."""
    flags = ("--policy", "zero", "--viewer", "web")
    with playing(tmp_path_factory.mktemp("viewer"), *flags) as process:
        port = int(process.stdout.readline().split(" (")[0].rpartition(":")[2])
        yield port
        with page(port) as last:
            controls(last)


def page(port: int, **headers: str) -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{port}",
        subprotocols=[f"viser-v{viser.__version__}"],
        additional_headers=headers,
        max_size=None,
        open_timeout=PATIENCE_S,
    )


def messages(connection: ClientConnection) -> list[dict]:
    """What the next frame of viser's holds."""
    frame = connection.recv(timeout=PATIENCE_S)
    length = int.from_bytes(frame[8:16], "little")
    plain = zstandard.decompress(frame[16 : 16 + length])
    return msgspec.msgpack.decode(plain)["messages"]


def controls(connection: ClientConnection) -> dict[str, str]:
    """The identifier of each control, by its label."""
    by_label: dict[str, str] = {}
    while "Show" not in by_label or "Speed" not in by_label:
        for made in messages(connection):
            if made["type"].startswith("Gui") and made.get("props", {}).get("label"):
                by_label[made["props"]["label"]] = made["uuid"]
    return by_label


def set_value(connection: ClientConnection, uuid: object, updates: object) -> None:
    message = {"type": "GuiUpdateMessage", "uuid": uuid, "updates": updates}
    connection.send(msgspec.msgpack.encode(message))


def wait_for_value(connection: ClientConnection, uuid: str) -> object:
    """The value that another page learns that a control was given."""
    while True:
        for message in messages(connection):
            if message["type"] == "GuiUpdateMessage" and message["uuid"] == uuid:
                return message["updates"]["value"]


def speed_of(one: ClientConnection, other: ClientConnection) -> str:
    """The speed's control, 0.5 on both pages; earlier values are not on their way any more."""
    speed = controls(other)["Speed"]
    set_value(one, speed, {"value": "1/2"})
    while wait_for_value(other, speed) != "1/2":
        pass
    return speed


def get(port: int, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/", headers=headers)
    return connection.getresponse().status


def test_a_page_is_served_under_the_viewers_own_names_alone(port):
    assert get(port) == get(port, Host=f"localhost:{port}") == get(port, Host="[::1]:80") == 200
    assert get(port, Host="rebound.example") == get(port, Host=f"rebound.example:{port}") == 403


def test_a_websocket_of_another_page_is_refused(port):
    for origin in ("https://site.example", "http://127.0.0.1:1", "null", ""):
        with pytest.raises(InvalidStatus, match="403"):
            page(port, Origin=origin)
    with page(port, Origin=f"http://127.0.0.1:{port}") as own:
        assert {"Speed", "Show", "Pause"} <= controls(own).keys()


@pytest.mark.parametrize("name", ["Speed", "Show", "Drive", "Environment", "Step", "FOV (°)"])
def test_a_control_takes_no_value_that_its_page_could_not_send(port, name):
    with page(port) as one, page(port) as other:
        uuid = controls(one)[name]
        speed = speed_of(one, other)
        for updates in [{"value": value} for value in WRONG] + ODD:
            if (name, updates) != ("Drive", {"value": True}):
                set_value(one, uuid, updates)
        for value in ("4", "1"):
            set_value(one, speed, {"value": value})
            assert wait_for_value(other, speed) == value


def test_messages_that_are_none_and_others_than_of_controls_do_nothing(port):
    with page(port) as one, page(port) as other:
        speed = speed_of(one, other)
        upload = {"source_component_uuid": speed, "transfer_uuid": "x", "filename": "x",
                  "mime_type": "x", "part_count": 0, "size_bytes": 0}  # fmt: skip
        for message in ({"type": "ShareUrlRequest"}, {"type": "FileTransferStartUpload", **upload}):
            one.send(msgspec.msgpack.encode(message))
        set_value(one, [1], {"value": 1})
        camera = msgspec.msgpack.encode({"type": "ViewerCameraMessage", "wxyz": 1})
        for garbage in (b"", b"\xc1", b"\x93", "text", camera):
            with page(port) as broken:
                broken.send(garbage)
        set_value(one, speed, {"value": "2"})
        assert wait_for_value(other, speed) == "2"


@pytest.mark.parametrize(
    ("listens", "host", "served"),
    [
        ("127.0.0.1", ["LOCALHOST"], True),
        ("127.0.0.1", ["localhost", "localhost"], False),
        ("127.0.0.1", ["[::1"], False),
        ("127.0.0.1", [], False),
        ("robot.lab", ["Robot.lab:8080"], True),
        ("0.0.0.0", ["203.0.113.7:8080"], True),
        ("0.0.0.0", ["robot.lab"], False),
    ],
)
def test_names_under_which_a_page_is_served(listens, host, served):
    headers = Headers([("Host", value) for value in host])
    assert (refusal(headers, names_of(listens)) is None) == served


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_serving_a_page_to_others_gives_a_warning(host, warns, capsys):
    with closing(PageServer(host, 0, "a page")) as server:
        server.announce("it")
        line = f"warning: anyone who can reach {server.url} sees it and can steer it (--host)\n"
    assert capsys.readouterr().err == (line if warns else "")
