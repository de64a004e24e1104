"""The 120-chapter Romance of the Three Kingdoms from Project Gutenberg, checked and cleaned.

The download is eBook 23950 as its public repository holds it, and is refused unless its sha256 is
the known one. Cleaning undoes what the file's age did to it and leaves the wording alone:

1. Hard line wraps are undone: one paragraph a line, each beginning with two ideographic spaces; a
   blank line before and after each chapter heading. The closing line of the file is dropped.
2. Private-use characters, wrap artefacts, are dropped.
3. A hundred places are mended one by one (`novel_places.tsv`): descriptions that the transcriber
   gave of characters missing from Big5, blanks left for such characters, lost paragraph breaks.
4. Punctuation is made one width, and dashes and dots one length.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from floatscope.errors import TextError
from floatscope.files import write_text_atomically

GUTENBERG_URL = (
    "https://raw.githubusercontent.com/gutenbergbooks/23950/"
    "857ef0f69f6360beef86bd8fde7f8b66fccd7d06/23950-0.txt"
)
RAW_SHA256 = "23742ec2440bb0fecfd6dcf78590158d81e2fa918063941329cdb9ee5b7d67db"
CLEAN_SHA256 = "2c149faca3169b38256e8fdde52153c4738a6d54f9d42bc23da6db3da5c1354a"

INDENT = "\u3000\u3000"
TIMEOUT_SECONDS = 30
_PUNCTUATION = str.maketrans(",;﹔﹖﹕﹐﹑‧“”〈〉．", "，；；？：，、，「」《》。")


def fetch_novel(
    out: Path,
    url: str = GUTENBERG_URL,
    *,
    sha256: str = RAW_SHA256,
    progress: Callable[[int], None] = lambda _: None,
) -> bool:
    """Download the novel, check it, clean it and write it to `out`.

    Args:
        out: the file to write; an existing file is replaced only when all has gone well.
        url: where the raw file is.
        sha256: what its checksum must be.
        progress: called with the bytes received so far.

    Returns:
        Whether the cleaned text is, byte for byte, the one that the published study used.

    Raises:
        TextError: no network, a cut-off download, or another file than expected.
        DiskError: `out` cannot be written.
    """
    raw = _download(url, progress)
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise TextError(
            f"{url} is not the file that was expected: its sha256 is {found}, not {sha256}. "
            "Nothing was written. The file may have been revised; train on it with --text if you "
            "trust it."
        )
    text = clean(raw.decode("utf-8-sig"))
    write_text_atomically(out, text)
    return hashlib.sha256(text.encode()).hexdigest() == CLEAN_SHA256


def _download(url: str, progress: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    received = 0
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            expected = response.headers.get("Content-Length")
            while part := response.read(65_536):
                parts.append(part)
                received += len(part)
                progress(received)
    except HTTPError as error:
        error.close()
        raise TextError(
            f"{url} answered {error.code} {error.reason}. Nothing was written."
        ) from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise TextError(
            f"{url} could not be downloaded: {reason}. Nothing was written. Check the network, or "
            "give another address of the same file with --url."
        ) from None
    if expected is not None and received < int(expected):
        raise TextError(
            f"the download of {url} was cut off after {received} of {expected} bytes. Nothing was "
            "written; try again."
        )
    return b"".join(parts)


def clean(raw: str) -> str:
    """The text of the novel without the artefacts of its transcription."""
    text = unwrap(raw.replace("\r\n", "\n"))
    for damaged, whole in _places():
        text = text.replace(damaged, whole)
    text = normalize(text)
    text = re.sub(r"\n*(第[^\n：]{1,5}回：[^\n]*)\n*", r"\n\n\1\n\n", text)
    return text.strip("\n") + "\n"


def unwrap(raw: str) -> str:
    """One paragraph a line: a paragraph ends at a blank line, or where the next line is indented.

    The Gutenberg line and private-use characters are dropped, ideographic spaces at line ends too.
    """
    raw = re.sub(r"End of Project Gutenberg's[^\n]*", "", raw)
    raw = re.sub("[\ue000-\uf8ff]", "", raw)
    raw = re.sub(r"\u3000+$", "", raw, flags=re.MULTILINE)
    raw = re.sub(rf"\n+(?={INDENT})", "\n\n", raw)
    raw = re.sub(r"\n+(?=第[^\n：]{1,5}回：)", "\n\n", raw)
    return "\n".join(block.replace("\n", "") for block in re.split(r"\n{2,}", raw.strip("\n")))


def normalize(text: str) -> str:
    """Punctuation of one width; runs of dashes become two, runs of dots an ellipsis of two."""
    text = re.sub(r"\.{2,}", "……", text)
    text = text.replace(".", "。").translate(_PUNCTUATION)
    return re.sub(r"[-－—─]+", "──", text)


def _places() -> list[tuple[str, str]]:
    table = resources.files("floatscope.lab.text").joinpath("novel_places.tsv")
    rows = (line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
    return [(a.replace("\\n", "\n"), b.replace("\\n", "\n")) for a, b in rows]
