"""The load test of the articles: a ramp of clients, short and long chats, and some that hang up.

Run it:  locust -f examples/locustfile.py --host http://localhost:8000      # and open localhost:8089
     or  add --headless --csv load, and STAGES=30:5,60:20,90:40 before it: 5 clients until 30 s, then 20 ...
"""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

from locust import HttpUser, LoadTestShape, between, task

STAGES = [
    tuple(map(int, each.split(":"))) for each in os.environ.get("STAGES", "30:5,60:20,90:40").split(",")
]
REFUSED = (413, 429, 503)  # proper answers of a full service: counted apart, and no failures


class Client(HttpUser):
    abstract = True
    wait_time = between(0.1, 1)

    def chat(self, name: str, *, words: int, max_tokens: int, most_events: int | None = None) -> None:
        messages = [{"role": "user", "content": "why " * words}]
        body = {"model": "any", "messages": messages, "max_tokens": max_tokens, "stream": True}
        began = time.perf_counter()
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, catch_response=True, name=f"{name}: accepted"
        ) as answer:
            if answer.status_code in REFUSED:
                counted: Any = answer.request_meta
                counted["name"] = f"{name}: refused {answer.status_code}"
                answer.success()
                time.sleep(min(5, int(answer.headers.get("retry-after", 0))))
                return
            for number, _ in enumerate(self.events(answer), 1):
                if number == 2:  # the first says who speaks
                    self.note(f"{name}: first token", began)
                if number == most_events:
                    answer.close()
                    return
            self.note(f"{name}: whole answer", began)

    @staticmethod
    def events(answer: Any) -> Iterator[bytes]:
        return (line for line in answer.iter_lines() if line.startswith(b"data: {"))

    def note(self, name: str, began: float) -> None:
        took = (time.perf_counter() - began) * 1000
        self.environment.events.request.fire(
            request_type="SSE", name=name, response_time=took, response_length=0, exception=None, context={}
        )


class Short(Client):
    weight = 7

    @task
    def ask(self) -> None:
        self.chat("short", words=20, max_tokens=32)


class Long(Client):
    weight = 3

    @task
    def ask(self) -> None:
        self.chat("long", words=random.randint(150, 300), max_tokens=200)


class HangsUp(Client):
    weight = 2

    @task
    def ask(self) -> None:
        self.chat("hangs up", words=50, max_tokens=200, most_events=3)


class Ramp(LoadTestShape):
    """So many clients until so many seconds, stage by stage; then the test is over."""

    def tick(self) -> tuple[int, float] | None:
        ran = self.get_run_time()  # type: ignore[no-untyped-call]
        return next(((clients, float(clients)) for until, clients in STAGES if ran < until), None)
