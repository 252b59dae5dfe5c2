"""What operators see: a count and a time for every request, for Prometheus and as lines of JSON."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

LOG = logging.getLogger("forerank.web")
# Seconds: a search of a small index takes some milliseconds, a large upload on a busy machine some seconds.
BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Measurements:
    """The numbers of one server, in a registry of its own."""

    def __init__(self, uploads_in_progress: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        names = ["method", "route", "status"]
        self.requests = Counter("forerank_requests", "Answered requests.", names, registry=self.registry)
        self.seconds = Histogram(
            "forerank_request_seconds",
            "Time from a request's first byte to the last byte of its answer.",
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.rows = Gauge("forerank_rows", "Images in the index.", registry=self.registry)
        self.reloads = Counter(
            "forerank_reloads", "Newer states of the index that were loaded.", registry=self.registry
        )
        self.added = Counter("forerank_added_images", "Images added.", registry=self.registry)
        uploads = Gauge("forerank_uploads_in_progress", "Uploads without an answer.", registry=self.registry)
        uploads.set_function(uploads_in_progress)


class Observe:
    """ASGI middleware, the outermost: counts, times and logs a request, and answers HEAD as GET."""

    def __init__(self, app: Any, *, measurements: Measurements) -> None:
        self.app, self.measurements = app, measurements

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        # A copy: the router writes its route into it, and the server below keeps the method, which is how
        # it knows that an answer to HEAD has no body.
        inner = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        status, sent = 500, 0

        async def send_counted(message: Any) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(inner, receive, send_counted)
        finally:
            seconds = time.perf_counter() - started
            # Never the path itself: everything that somebody tries would become a time series.
            route = getattr(inner.get("route"), "path", None) or "other"
            self.measurements.requests.labels(scope["method"], route, str(status)).inc()
            self.measurements.seconds.labels(route).observe(seconds)
            LOG.info(
                "request",
                extra={
                    "request": {
                        "client": (inner.get("client") or ("",))[0],
                        "method": scope["method"],
                        "path": inner["path"],
                        "status": status,
                        "milliseconds": round(1000 * seconds, 2),
                        "bytes": sent,
                    }
                },
            )


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what a request asked for (`?...`) is not in it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": stamp, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "request", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_as_json() -> None:
    """From now on the server's log is lines of JSON on standard error, one for every request."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(JsonLines())
    for name, level in (("forerank.web", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [to_stderr], False
        logger.setLevel(level)
