"""``nodecache report``: one self-contained page that a browser draws."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
import zlib
from html.parser import HTMLParser

import pytest

from nodecache import history, report
from nodecache.__main__ import main


def event(**fields):
    said = {
        "event": "build",
        "outcome": "built",
        "name": "fast",
        "kind": "module",
        "recipe": "r",
        "key": "k" * 40,
        "attempt": "a1",
        "started": 1_000_000.0,
        "seconds": 10.0,
        "pid": 100,
        "host": "node17",
        "rank": 0,
    }
    return history.Event(**{**said, **fields})


def job():
    """A build that ranks waited for, one of them in vain, and a failure."""
    waits = [
        event(event="wait", outcome="waited", key="", pid=100 + rank, rank=rank, seconds=9.5) for rank in range(1, 8)
    ]
    late = event(event="wait", outcome="timeout", key="", pid=200, rank=9, started=1_000_003.0, seconds=2.0)
    failed = event(outcome="failed", name="<b>&bad", key="", attempt="a2", started=1_000_012.0, seconds=3.0)
    return [event(), *waits, late, failed]


def page(found=None):
    return report.page(job() if found is None else found, [], root="/scratch/<root>", host="node17")


class Reader(HTMLParser):
    """Collects tags, and what a page would fetch."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "data", "action", "poster")]

    def handle_data(self, data):
        self.text += data


def test_the_page_fetches_nothing_and_runs_nothing():
    reader = Reader()
    reader.feed(page())
    assert reader.fetched == []
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(reader.tags)
    assert not re.search(r"url\(|@import|https?:", page())


def test_names_are_text_and_never_markup():
    reader = Reader()
    reader.feed(page())
    assert "b" not in reader.tags
    assert "<b>&bad" in reader.text
    assert "/scratch/<root>" in reader.text


def test_each_build_and_wait_is_a_bar_at_its_time():
    (svg,) = re.findall(r"<svg.*?</svg>", page(), re.DOTALL)
    bars = {}
    for group in ET.fromstring(svg).iter("g"):
        title, rect = group
        bars[title.text] = (rect.get("class"), float(rect.get("x")), float(rect.get("width")))
    assert len(bars) == 10
    kind, start, width = bars["build of fast by rank 0, pid 100 on node17: built, 10.00 s"]
    assert kind == "built"
    timed_out = bars["wait of fast by rank 9, pid 200 on node17: timeout, 2.00 s"]
    assert timed_out[0] == "other"
    assert timed_out[1] - start == pytest.approx(width * 0.3, abs=0.2)
    assert timed_out[2] == pytest.approx(width * 0.2, abs=0.2)
    assert bars["build of <b>&bad by rank 0, pid 100 on node17: failed, 3.00 s"][0] == "failed"


def test_builds_that_lie_far_apart_are_timelines_of_their_own_the_newest_first():
    found = [event(), event(started=1_010_000.0, name="later", attempt="a9")]
    titles = re.findall(r"<h2>(\d.*?)</h2>", page(found))
    assert [title.rpartition(" ")[2] for title in titles] == ["later", "fast"]


def test_a_thousand_waiters_are_summed_up():
    waits = [event(event="wait", outcome="waited", rank=rank, pid=rank + 1) for rank in range(1000)]
    text = page([event(), *waits])
    assert f"and {1001 - report.ROWS} more waits" in text
    assert len(text) < 400_000


def test_an_empty_history_is_a_page_too():
    assert "Nothing has been built yet." in page([])


def test_the_command_writes_the_page_of_real_builds(start, tiny, compiler, load_program, tmp_path, capsys):
    compiler.set(before="sleep 1")
    source = tiny()
    children = [start(load_program, "tiny", source) for _ in range(3)]
    assert [child.wait().status for child in children] == [0] * 3
    target = tmp_path / "report.html"
    assert main(["report", "-o", str(target)]) == 0
    text = target.read_text()
    assert len(re.findall('<rect class="waited"', text)) == 2
    assert "compile tiny.cpp: " in text
    assert main(["report", "--since", "1h"]) == 0
    assert 'class="waited"' in capsys.readouterr().out
    assert main(["report", "--since", "soon"]) == 2


def pixels(path):
    """Colours of a PNG's pixels as Chromium writes it: 8 bits, RGB or RGBA, not interlaced."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    assert (depth, interlaced) == (8, 0)
    size = {2: 3, 6: 4}[kind]
    raw, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            raw += data[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(raw)
    stride = width * size
    before = bytearray(stride)
    colours = set()
    for row in range(height):
        how, line = raw[row * (stride + 1)], bytearray(raw[row * (stride + 1) + 1 : (row + 1) * (stride + 1)])
        for index in range(stride):
            left = line[index - size] if index >= size else 0
            up, corner = before[index], before[index - size] if index >= size else 0
            if how == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            else:
                near = {0: 0, 1: left, 2: up, 3: (left + up) // 2}[how]
            line[index] = (line[index] + near) & 255
        colours |= {bytes(line[x : x + 3]) for x in range(0, stride, size)}
        before = line
    return colours


@pytest.mark.integration
@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        (
            "light",
            {"background": "ffffff", "text": "1b1f24", "built": "2369b8", "waited": "d9a430", "failed": "c0362c"},
        ),
        ("dark", {"background": "14181d", "text": "e4e8ec", "built": "4f9bea", "waited": "d6a63c", "failed": "ef6a5f"}),
    ],
)
def test_a_browser_draws_it_in_light_and_in_dark(scheme, wanted, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        import os

        assert not os.environ.get("CI"), "chromium is not installed"
        pytest.skip("chromium is not installed")
    (tmp_path / "report.html").write_text(page(), encoding="utf-8")
    picture = tmp_path / "picture.png"
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--no-first-run", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"),
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            *("--window-size=700,700", f"--screenshot={picture}", f"file://{tmp_path / 'report.html'}"),
        ],
        capture_output=True,
        timeout=90,
        check=True,
    )
    drawn = {colour.hex() for colour in pixels(picture)}
    assert {name for name, colour in wanted.items() if colour not in drawn} == set()
