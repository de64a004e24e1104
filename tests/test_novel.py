"""The novel's download, against a real HTTP server on this machine, and its cleaning."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from floatscope.errors import TextError
from floatscope.lab.text import novel

RAW = (
    "\n第一回：宴桃園豪傑，斬黃巾英雄\n\n"
    "\u3000\u3000話說天下大勢，分久必合，合久必分：周末七國分\n爭,并入於秦;及秦滅之後─\n─又并入於漢....\n\n"
    "\u3000\u3000只見伯奢驢鞍前\u3000懸酒二瓶，手攜果菜\ue020而來。詩曰：\u3000\u3000\n\u3000\u3000\n\n"
    "\u3000\u3000勝敗﹖乃“兵家”常事．如此-去\n第二回：張翼德怒鞭督郵，何國舅謀誅宦豎\n\n"
    "\u3000\u3000且說〈梁父吟〉。\n\n\n\n\n\n"
    "End of Project Gutenberg's Romance of the Three Kingdoms, by Guanzhong Luo\n\n"
)
CLEAN = (
    "第一回：宴桃園豪傑，斬黃巾英雄\n\n"
    "\u3000\u3000話說天下大勢，分久必合，合久必分：周末七國分爭，并入於秦；及秦滅之後──又并入於漢……\n"
    "\u3000\u3000只見伯奢驢鞍前鞽懸酒二瓶，手攜果菜而來。詩曰：\n"
    "\u3000\u3000勝敗？乃「兵家」常事。如此──去\n\n"
    "第二回：張翼德怒鞭督郵，何國舅謀誅宦豎\n\n"
    "\u3000\u3000且說《梁父吟》。\n"
)
SHA256 = hashlib.sha256(RAW.encode()).hexdigest()


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = RAW.encode()
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:-40] if self.path in ("/cut", "/unsized") else content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_cleaning() -> None:
    assert novel.clean(RAW) == CLEAN
    assert novel.clean(RAW.replace("\n", "\r\n")) == CLEAN


def test_places_are_distinct_and_change_something() -> None:
    places = novel._places()
    assert len(places) == 94
    assert len({damaged for damaged, _ in places}) == 94
    for damaged, whole in places:
        assert novel.normalize(damaged) != whole
        assert damaged[:2] == whole[:2] or damaged.startswith("\u3000\u3000★")


def test_download_is_checked_and_cleaned(tmp_path: Path, server: str) -> None:
    received: list[int] = []
    out = tmp_path / "novel.txt"
    same = novel.fetch_novel(out, f"{server}/", sha256=SHA256, progress=received.append)
    assert out.read_text(encoding="utf-8") == CLEAN
    assert same is False  # a short sample is not the published study's text
    assert received[-1] == len(RAW.encode())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/absent", "answered 404"),
        ("/cut", "cut off after|could not be downloaded"),
        ("/unsized", "is not the file that was expected"),
    ],
)
def test_bad_downloads_leave_the_file_alone(
    tmp_path: Path, server: str, path: str, message: str
) -> None:
    out = tmp_path / "novel.txt"
    out.write_text("mine")
    with pytest.raises(TextError, match=message) as error:
        novel.fetch_novel(out, server + path, sha256=SHA256)
    assert "Nothing was written" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["novel.txt"]
    assert out.read_text() == "mine"


def test_wrong_checksum(tmp_path: Path, server: str) -> None:
    with pytest.raises(TextError, match=f"its sha256 is {SHA256}, not {novel.RAW_SHA256}"):
        novel.fetch_novel(tmp_path / "novel.txt", f"{server}/")
    assert not list(tmp_path.iterdir())


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TextError, match="could not be downloaded.*Check the network"):
        novel.fetch_novel(tmp_path / "novel.txt", f"http://127.0.0.1:{port}/")
    assert not list(tmp_path.iterdir())


def test_the_command_reports_a_wrong_file(tmp_path: Path, server: str) -> None:
    command = [sys.executable, "-m", "floatscope.cli.main", "text", "novel", "--url", f"{server}/"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
