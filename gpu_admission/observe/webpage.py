"""The status page as one document: its markup, style and script in one, allowed nothing else.

Owns the assembly and the headers of the page. It holds no data: the script asks the same
address for that, and puts it in as text.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from starlette.responses import HTMLResponse, Response


class Webpage:
    """The document, read once; no request to anywhere else can come from it."""

    def __init__(self) -> None:
        folder = files("gpu_admission.observe") / "page"
        style = (folder / "status.css").read_text(encoding="utf-8")
        script = (folder / "status.js").read_text(encoding="utf-8")
        markup = (folder / "status.html").read_text(encoding="utf-8")
        self._document = markup.replace("/*style*/", style).replace("/*script*/", script)
        self._policy = "; ".join(
            (
                "default-src 'none'",
                f"style-src '{_digest(style)}'",
                f"script-src '{_digest(script)}'",
                "connect-src 'self'",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            )
        )

    def response(self) -> Response:
        return HTMLResponse(self._document, headers={"Content-Security-Policy": self._policy})


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
