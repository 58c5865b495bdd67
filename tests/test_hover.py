"""What an editor shows: each setting's type, meaning and default, on its keyword."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gpu_admission
from gpu_admission.settings import Options

CONFIGURATION = {
    "python": {"pythonPath": sys.executable},
    "basedpyright.analysis": {"extraPaths": [str(Path(gpu_admission.__file__).parents[1])]},
}
SETTINGS = sorted(Options.__annotations__)


class LanguageServer:
    """Pyright's language server, spoken to over its pipes as an editor does."""

    def __init__(self, folder: Path) -> None:
        command = Path(sysconfig.get_path("scripts")) / "basedpyright-langserver"
        self.process = subprocess.Popen(
            [command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.folder = folder
        self.asked = 0
        capabilities = {
            "workspace": {"configuration": True},
            "textDocument": {"hover": {"contentFormat": ["plaintext"]}},
        }
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities)
        self.write({"method": "initialized", "params": {}})

    def write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        size = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        message: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return message

    def ask(self, method: str, **params: Any) -> Any:
        self.asked += 1
        self.write({"id": self.asked, "method": method, "params": params})
        while True:
            message = self.read()
            if "method" not in message:
                return message["result"]
            if "id" in message:  # it asks back: for its configuration, a section each
                items = (message.get("params") or {}).get("items", ())
                self.write(
                    {"id": message["id"], "result": [CONFIGURATION.get(i["section"], {}) for i in items]}
                )

    def open(self, name: str, text: str) -> str:
        uri = (self.folder / name).as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.write({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        return uri

    def hover(self, uri: str, line: int, character: int) -> str:
        at = {"line": line, "character": character}
        shown = self.ask("textDocument/hover", textDocument={"uri": uri}, position=at)
        return "" if shown is None else " ".join(shown["contents"]["value"].split())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    server = LanguageServer(tmp_path_factory.mktemp("editor"))
    yield server
    server.process.kill()
    server.process.communicate()


@pytest.mark.parametrize("call", ["Admission(", "GPUAdmission(None, "])
def test_an_editor_shows_each_setting_with_its_type_its_meaning_and_its_default(
    server: LanguageServer, call: str
) -> None:
    lines = ["from gpu_admission import Admission, GPUAdmission", *(f"{call}{name}=x)" for name in SETTINGS)]
    uri = server.open(f"{call.strip('( ,')}.py", "\n".join(lines))
    for line, name in enumerate(SETTINGS, start=1):
        shown = server.hover(uri, line, len(call) + 1)
        assert f"{name}: " in shown, shown
        assert "Default: " in shown, shown
        assert len(shown) > 60, shown
