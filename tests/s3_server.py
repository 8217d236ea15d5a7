"""A real S3 server, moto's, on the fake machines' network, with faults when asked for, and the clients' packages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self
from xml.etree import ElementTree as ET

from tests.foreign import installed
from tests.testbed.nodes import NETWORK
from tests.testbed.processes import Running, run, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.testbed.nodes import Nodes

PINS = (
    *("s3fs==2026.9.0", "fsspec==2026.9.0", "moto==5.2.5"),
    # What those import.
    *("aiobotocore==3.10.0", "aiohappyeyeballs==2.7.1", "aiohttp==3.14.5", "aioitertools==0.13.0", "aiosignal==1.4.0"),
    *("attrs==26.1.0", "blinker==1.9.0", "boto3==1.43.117", "botocore==1.43.117", "certifi==2026.10.19.post1"),
    *("cffi==2.1.1", "charset-normalizer==3.5.3", "click==8.5.1", "cryptography==50.0.2", "Flask==3.1.3"),
    *("flask-cors==6.0.5", "frozenlist==1.8.0", "idna==3.20", "itsdangerous==2.2.0", "Jinja2==3.1.6"),
    *("jmespath==1.1.0", "MarkupSafe==3.0.4", "multidict==7.2.1", "propcache==0.5.4", "py-partiql-parser==0.6.3"),
    *("pycparser==3.12", "python-dateutil==2.9.0.post0", "PyYAML==6.0.4", "requests==2.34.2", "responses==0.26.3"),
    *("s3transfer==0.19.3", "six==1.17.0", "typing_extensions==4.16.0", "urllib3==2.8.0", "Werkzeug==3.1.9"),
    *("wrapt==2.5.2", "xmltodict==1.0.4", "yarl==1.25.1"),
)
HOST, PORT, BUCKET = f"{NETWORK}.254", 5000, "bucket"

# Runs on `head`, with a folder for what it is asked for: 500 for the paths that have the words in `fail`, an archive's
# way held in the middle (`hold-GET`, `hold-PUT`), less than AWS says or does of `If-None-Match` (`terse`, `unaware`).
SERVER = """\
import sys, threading, time
from pathlib import Path
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
moto = DomainDispatcherApplication(create_backend_app)
one_step = threading.Lock()
UNAWARE = b"<Error><Code>NotImplemented</Code><Message>A header implies what is not implemented</Message></Error>"


class Handler(MotoRequestHandler):
    timeout = 10  # of a client that is heard no more


def in_the_middle(method):
    held, hold = folder / f"held-{method}", folder / f"hold-{method}"
    if hold.exists():
        held.touch()
        while hold.exists():
            time.sleep(0.02)


def in_halves(body):
    yield body[: len(body) // 2]
    in_the_middle("GET")
    yield body[len(body) // 2 :]


def answer(environ, start_response):
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    with open(folder / "requests", "a") as file:
        file.write(f"{environ['REMOTE_ADDR']} {method} {path}\\n")
    late = folder / "late"
    time.sleep(float(late.read_text()) if late.exists() else 0)
    fail = folder / "fail"
    if fail.exists() and fail.read_text() in path:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []
    if "HTTP_IF_NONE_MATCH" in environ and (folder / "unaware").exists():
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response("501 Not Implemented", [("Content-Length", str(len(UNAWARE)))])
        return [UNAWARE]
    if "HTTP_IF_NONE_MATCH" in environ:
        with one_step:  # S3 looks and writes in one step, moto in two
            body = b"".join(moto(environ, start_response))
        condition = b"<Condition>If-None-Match</Condition>"
        return [body.replace(condition, b" " * len(condition)) if (folder / "terse").exists() else body]
    if "/archives/" not in path:
        return moto(environ, start_response)
    if method == "GET":
        return in_halves(b"".join(moto(environ, start_response)))
    if method == "PUT":
        environ["wsgi.input"].peek(1)  # the first bytes have come; of a big archive, not the last
        in_the_middle("PUT")
    try:
        return moto(environ, start_response)
    finally:
        (folder / f"held-{method}").unlink(missing_ok=True)


run_simple(host, port, answer, threaded=True, request_handler=Handler)
"""
ASK = """\
import os, sys, urllib.request

method, url, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
request = urllib.request.Request(url, os.urandom(size) if method == "PUT" else None, method=method)
request.add_header("Content-Type", "application/octet-stream")
request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(request, timeout=20).read().decode())
"""


class Server:
    """The server on ``head``, with an empty bucket. Leaving it kills the server.

    Args:
        nodes: the machines.
        folder: private, for the server.

    Attributes:
        env: variables for the nodes, with which the bucket is their tier.
    """

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self._nodes = nodes
        self._folder = folder
        self._url = f"http://{HOST}:{PORT}"
        self.env = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self._url,
            "AWS_SECRET_ACCESS_KEY": "testing",
            "NODECACHE_REMOTE": f"s3://{BUCKET}/path",
            "NO_PROXY": HOST,
            "PYTHONPATH": str(installed("s3", PINS)),
        }

    def __enter__(self) -> Self:
        self._folder.mkdir()
        command = self._nodes.on_head(sys.executable, "-c", SERVER, HOST, str(PORT), str(self._folder))
        self._running = Running(command, env=self.env)
        try:
            until(self._is_up, 60, self._running.output)
            self._ask("PUT", BUCKET)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._running.__exit__(*exc)

    def kill(self) -> None:
        """End it, and the bucket with it."""
        self._running.kill()

    def fail(self, path: str = "") -> None:
        """Answer 500 from now on to what asks for a path with this in it."""
        part = self._folder / "fail.part"
        part.write_text(path)
        part.rename(self._folder / "fail")

    def be(self, how: str) -> None:
        """Name no condition when it refuses to write over an object (``terse``), or know none (``unaware``)."""
        (self._folder / how).touch()

    def answer_after(self, seconds: float) -> None:
        """Be as far away as that: each answer from now on takes so much longer."""
        (self._folder / "late").write_text(str(seconds))

    def hold(self, method: str) -> None:
        """Let the next GET or PUT of an archive stop in the middle."""
        (self._folder / f"hold-{method}").touch()

    def let_go(self, method: str) -> None:
        """Let it go on."""
        (self._folder / f"hold-{method}").unlink()

    def is_held(self, method: str) -> bool:
        """Whether one has stopped, and has not ended since."""
        return (self._folder / f"held-{method}").exists()

    def requests(self) -> list[list[str]]:
        """Whatever it was asked for: the address that asked, the method, the path."""
        return [line.split() for line in (self._folder / "requests").read_text().splitlines()]

    def objects(self) -> dict[str, int]:
        """Names and sizes of all that is in the bucket."""
        listing = ET.fromstring(self._ask("GET", f"{BUCKET}?list-type=2"))
        return {
            each.findtext("{*}Key"): int(each.findtext("{*}Size")) for each in listing.iter() if "Contents" in each.tag
        }

    def garble(self, name: str, size: int) -> None:
        """Put noise of this size in an object's place."""
        self._ask("PUT", f"{BUCKET}/{name}", size)

    def remove_bucket(self) -> None:
        """Remove the bucket, which must be empty."""
        self._ask("DELETE", BUCKET)

    def _is_up(self) -> bool:
        assert self._running.process.poll() is None, self._running.output()
        return "Running on" in self._running.output()

    def _ask(self, method: str, path: str, size: int = 0) -> str:
        ask = [sys.executable, "-c", ASK, method, f"{self._url}/{path}", str(size)]
        return run(self._nodes.on_head(*ask), timeout=30)
