"""A model by its hub name, fetched from a real HTTP server that answers as the Hugging Face hub does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "a" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "README.md": b"words",
}
FETCH = "import sys; from deploy.hub import checkpoint_folder; print(checkpoint_folder(sys.argv[1]))"


class Hub(BaseHTTPRequestHandler):
    """`/api/models/<name>/revision|tree/<revision>` lists the files, `/<name>/resolve/<commit>/<file>` gives them."""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        name = path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/org/model/tree/"):
            tree = [{"type": "file", "path": file, "size": len(data), "oid": "0" * 40} for file, data in FILES.items()]
            self._send(json.dumps(tree).encode(), body)
        elif path.startswith("/api/models/org/model"):
            listing = {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": file} for file in FILES]}
            self._send(json.dumps(listing).encode(), body)
        elif path.startswith("/org/model/resolve/") and name in FILES:
            self._send(FILES[name], body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(name: str, endpoint: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    return subprocess.run(
        [sys.executable, "-c", FETCH, name],
        env=kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_hub_name_becomes_a_local_folder_without_pickles(endpoint: str, tmp_path: Path) -> None:
    done = fetch("org/model", endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    again = fetch("org/model", endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout, "once fetched, it needs no network"


@pytest.mark.parametrize(("name", "env"), [("org/nothing", {}), ("org/never", {"HF_HUB_OFFLINE": "1"})])
def test_what_the_hub_does_not_give_is_one_clear_error(
    name: str, env: dict[str, str], endpoint: str, tmp_path: Path
) -> None:
    done = fetch(name, endpoint, tmp_path, **env)
    assert done.returncode != 0
    assert f"DataError: no checkpoint folder {name}, and the hub does not give a model of that name" in done.stderr


@pytest.mark.parametrize("name", ["missing", "./missing/model", "a/b/c", "/nowhere/model"])
def test_what_is_no_hub_name_is_not_asked_for(name: str, tmp_path: Path) -> None:
    done = fetch(name, "http://127.0.0.1:9", tmp_path)
    assert f"DataError: no checkpoint folder {name}\n" in done.stderr
