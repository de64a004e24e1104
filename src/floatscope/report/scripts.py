"""The page's scripts: own modules joined into one, and the charts' runtime, walled in.

A page from disk cannot import, so modules are put one after the other, the imported before the
importing, and their `import` and `export` words are taken away. Names at their top levels are
therefore all different (a test checks).
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from floatscope.report.page_text import HERE

PAGE = HERE / "page"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)


def joined(entry: str) -> str:
    """The module `entry` and all that it imports, as one."""
    order: list[str] = []

    def visit(module: str) -> None:
        if module not in order:
            for imported in _IMPORT.findall(source(module)):
                visit(imported)
            order.append(module)

    visit(entry)
    return "".join(_EXPORT.sub("", _IMPORT.sub("", source(module))) for module in order)


def source(module: str) -> str:
    """The text of one of the page's modules."""
    return (PAGE / f"{module}.js").read_text(encoding="utf-8")


@cache
def runtime() -> str:
    """Vega, Vega-Lite and Embed, leaving one global name behind."""
    import vl_convert

    from floatscope.report.charts import VEGA_LITE

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    bundle = bundle.replace("</script", "<\\/script")
    return f"(function () {{\n{bundle}\n}})();"


def digest(script: str) -> str:
    """What Content-Security-Policy calls a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
