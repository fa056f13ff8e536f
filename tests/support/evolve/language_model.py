"""A local server with OpenAI's API that plays the language model, and a search of three steps that asks it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def language_model(answers: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the base of the API, and what was asked; the answers come one after another, the last one again."""
    asked: list[str] = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append("\n".join(str(one["content"]) for one in request["messages"]))
            said = answers[min(len(asked), len(answers)) - 1]
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": said},
                "finish_reason": "stop",
            }
            about = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
            }
            body = json.dumps({**about, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def diff(old: str, new: str) -> str:
    """Return an answer that changes a text, as OpenEvolve reads it."""
    return f"A better one:\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def changed(program: str, answer: str) -> str:
    """Return a program with the answer's changes."""
    _, _, rest = answer.partition("<<<<<<< SEARCH\n")
    old, _, rest = rest.partition("\n=======\n")
    return program.replace(old, rest.partition("\n>>>>>>> REPLACE")[0])


def loaded(evaluator: Path) -> Any:
    """Return an evaluator's file as a module, as searches load it."""
    spec = importlib.util.spec_from_file_location("evaluation_module", evaluator)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def search(initial: Path, evaluator: Path, api: str, steps: int) -> list[tuple[str, Any]]:
    """Return every program with its result, the first one's first; each step asks for a change of the best one."""
    module, suffix = loaded(evaluator), initial.suffix
    found = [(initial.read_text(), module.evaluate(str(initial)))]
    for step in range(steps):
        best, result = max(found, key=lambda one: one[1].metrics["combined_score"])
        content = f"{best}\n{result.metrics}\n{found[-1][1].artifacts}"
        body = {"model": "any", "messages": [{"role": "user", "content": content}]}
        request = urllib.request.Request(
            f"{api}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        path = initial.with_name(f"step{step}{suffix}")
        path.write_text(changed(best, said))
        first = module.evaluate_stage1(str(path))
        passes = first.metrics["combined_score"] >= -5
        found.append((path.read_text(), module.evaluate_stage2(str(path)) if passes else first))
    return found
