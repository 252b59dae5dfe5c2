"""Routes for those who run the server: a sign of life, and measurements."""

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forerank.search.index import Index
from forerank.web.observe import Measurements


def add_operator_routes(app: FastAPI, index: Index, measurements: Measurements) -> None:
    """Add the routes to an application."""

    @app.get("/healthz", include_in_schema=False)
    def healthz() -> dict[str, str]:
        """Whether the index answers; it tells nothing else, because it needs no token."""
        len(index)  # an engine that cannot be reached raises, which is answered with 503
        return {"status": "ok"}

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """Measurements in the format of Prometheus."""
        measurements.rows.set(len(index))
        return Response(generate_latest(measurements.registry), media_type=CONTENT_TYPE_LATEST)
