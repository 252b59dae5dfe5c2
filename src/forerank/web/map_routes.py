"""The routes of the map: where every image of the collection lies."""

import threading

import numpy as np
from fastapi import FastAPI
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from forerank.search.index import Index
from forerank.search.map import Map, accepted_points, read_map
from forerank.web.answers import MapAnswer
from forerank.web.search_routes import REFUSALS, Conditions, Text, sends


class KeptMap:
    """The map of an index, read when first asked for, and again when `forerank map` has made another."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._map: Map | None = None
        self._version = 0

    def version(self) -> int:
        """When the file was written, 0 if there is none; what it holds is looked at when it is needed."""
        file = self._index.engine.map_file()
        try:
            return 0 if file is None else file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def get(self) -> Map:
        """The map; 404 where there is none for this index."""
        with self._lock:
            version = self.version()
            if version != self._version:
                self._map, self._version = read_map(self._index), version
        if self._map is None:
            raise HTTPException(404, "there is no map of this index: make one with forerank map INDEX")
        return self._map


def add_map_routes(app: FastAPI, index: Index) -> KeptMap:
    """Add the routes to an application."""
    kept = KeptMap(index)

    @app.get("/api/map", responses=REFUSALS)
    def about_map() -> MapAnswer:
        """How many images the map shows, and what they are called."""
        made = kept.get()
        return MapAnswer(points=len(made.ids), missing=made.missing, labels=list(made.names))

    @app.get("/api/map/points", response_class=Response, responses=sends("application/octet-stream"))
    def points() -> Response:
        """The places as little-endian numbers, one list after the other.

        All ids, all label codes (32 bits each), then all x, all y (16 bits; 65535 is the right or lower end).
        """
        made = kept.get()
        places = np.round(np.clip(made.positions, 0, 1) * 65535).astype("<u2")
        parts = [made.ids.astype("<u4"), made.labels.astype("<u4"), places[:, 0], places[:, 1]]
        data = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        return Response(data, media_type="application/octet-stream")

    @app.get("/api/map/accepted", response_class=Response, responses=sends("application/octet-stream"))
    def accepted(where: Conditions = [], text: Text = "") -> Response:  # noqa: B006 - FastAPI copies it
        """One byte per point, in the order of the points: 1 if the image meets the conditions, else 0."""
        accepted = accepted_points(index, kept.get(), index.filter(where, text))
        return Response(accepted.tobytes(), media_type="application/octet-stream")

    return kept
