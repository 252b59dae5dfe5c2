"""The application: routes of the page and of its JSON API."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException

from forerank import __version__
from forerank.errors import ForerankError, InputError
from forerank.losses import loss_names
from forerank.search.engine import Filter
from forerank.search.index import Index, Matches
from forerank.search.rows import LARGEST_ID, Row
from forerank.web.answers import (
    ErrorAnswer,
    GalleryAnswer,
    HitAnswer,
    IndexAnswer,
    PenaltiesAnswer,
    RowAnswer,
    SearchAnswer,
)
from forerank.web.guard import Guard
from forerank.web.penalties import penalties_of
from forerank.web.pictures import Pictures
from forerank.web.shared_search import SharedSearch
from forerank.web.uploads import DECODERS, Decoders, Limits, RefusedUpload, Uploads

HERE = Path(__file__).parent
RowId = Annotated[int, PathParameter(ge=0, le=LARGEST_ID, description="row of the index")]
After = Annotated[int, Query(ge=-1, le=LARGEST_ID, description="id of the last row already shown")]
Text = Annotated[str, Query(max_length=200)]
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 404, 408, 413, 415, 422, 503)
}


def create_app(
    index: Index,
    *,
    title: str | None = None,
    limits: Limits | None = None,
    only_loopback: bool = True,
    host: str = "localhost",
) -> FastAPI:
    """The page and API of an index as an ASGI application that listens on `host`."""
    limits = limits or Limits()
    name = title or Path(index.engine.address.rpartition(":")[2]).name
    uploads, decoders = Uploads(limits), Decoders(limits)
    # Threads of their own: what strangers send must not keep thumbnails and other searches waiting.
    for_uploads = ThreadPoolExecutor(DECODERS, thread_name_prefix="upload")

    @asynccontextmanager
    async def while_it_runs(_: FastAPI) -> AsyncIterator[None]:
        yield
        for_uploads.shutdown(wait=False, cancel_futures=True)
        decoders.close()

    app = FastAPI(
        title=f"Forerank: {name}",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=while_it_runs,
    )
    app.add_middleware(Guard, only_loopback=only_loopback, host=host)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    templates = Jinja2Templates(directory=HERE / "templates")
    index = index.finding_by(SharedSearch(index.engine.search))
    app.state.index = index  # whose model is loaded when it is first needed
    pictures = Pictures(index)
    model_in_use = threading.Lock()  # one forward pass at a time: it already uses every core
    _answer_errors(app)

    def row_of(number: int) -> Row:
        try:
            return index.engine.rows([number])[0]
        except KeyError:
            raise HTTPException(404, f"the index has no row {number}") from None

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page(request: Request) -> Response:
        return templates.TemplateResponse(request, "page.html", {"title": name, "losses": loss_names()})

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs(request: Request) -> Response:
        return templates.TemplateResponse(request, "docs.html", {"title": name})

    @app.get("/api/index")
    def about() -> IndexAnswer:
        """What the index is: how many images, which model, which threshold."""
        stored = index.meta.get("threshold")
        promise = (
            None
            if stored is None
            else f"{stored['precision']:.1%} right ({stored['low']:.1%} to {stored['high']:.1%})"
        )
        return IndexAnswer(
            title=name,
            images=len(index),
            dimensions=index.dim,
            model=index.meta["model"].get("name", "unknown model"),
            labelled=bool(index.meta.get("labelled")),
            columns=list(index.columns),
            dense=index.engine.abilities.dense_ids,
            approximate=bool(index.meta.get("approximate")),
            threshold=index.threshold,
            precision=promise,
        )

    @app.get("/api/gallery", responses=REFUSALS)
    def gallery(
        after: After = -1,
        limit: Annotated[int, Query(ge=1, le=limits.page)] = 60,
        label: Annotated[str | None, Query(max_length=500)] = None,
        text: Text = "",
    ) -> GalleryAnswer:
        """Indexed images in order, a stretch at a time, all or those whose path or label contains a text."""
        rows = index.engine.page(after=after, limit=limit, where=Filter(label, text))
        return GalleryAnswer(
            rows=[_row_answer(row) for row in rows],
            next=rows[-1].id if len(rows) == limit else None,
        )

    @app.get("/api/labels", responses=REFUSALS)
    def labels(text: Text = "", limit: Annotated[int, Query(ge=1, le=200)] = 50) -> list[str]:
        """Some labels that contain a text."""
        return index.engine.labels(text, limit)

    neighbours = Annotated[int, Query(ge=1, le=limits.neighbours, description="images to find")]
    picture = {"schema": {"type": "string", "format": "binary"}}
    body = {"requestBody": {"required": True, "content": {"image/*": picture}}}

    @app.post("/api/search", responses=REFUSALS, openapi_extra=body)
    async def search(request: Request, k: neighbours = 24) -> SearchAnswer:
        """Find the images nearest to a picture; its bytes are the body of the request."""
        async with uploads.receive(request) as data:
            return await asyncio.get_running_loop().run_in_executor(for_uploads, search_picture, data, k)

    def search_picture(data: bytes, k: int) -> SearchAnswer:
        started = time.perf_counter()
        with model_in_use:
            wanted = index.retriever.preprocessing
        image = decoders.decode(data, wanted)
        with model_in_use:
            vectors = index.embed([image])
        matches = index.search_vectors(vectors, k)[0]
        return _answer(matches, None, started)

    @app.get("/api/rows/{number}", responses=REFUSALS)
    def row(number: RowId) -> RowAnswer:
        """One indexed image."""
        return _row_answer(row_of(number))

    @app.get("/api/rows/{number}/search", responses=REFUSALS)
    def search_row(number: RowId, k: neighbours = 24) -> SearchAnswer:
        """Find the images nearest to an indexed one, without itself."""
        started = time.perf_counter()
        query = row_of(number)
        return _answer(index.search_row(number, k), query.label or None, started)

    @app.get("/api/rows/{number}/penalties", responses=REFUSALS)
    def penalties(
        number: RowId, loss: str = "PNP-Dq", shown: Annotated[int, Query(ge=2, le=40)] = 12
    ) -> PenaltiesAnswer:
        """The ranked list of an indexed image with what a loss charges each wrong image in it."""
        return penalties_of(index, row_of(number), loss, shown)

    @app.get("/images/{number}", response_class=Response, responses=REFUSALS)
    def image(request: Request, number: RowId, size: str = "small") -> Response:
        """The picture of an indexed image, "small" or "large"."""
        if size not in ("small", "large"):
            raise HTTPException(422, "size is small or large")
        shown = row_of(number)
        tag = f'"{shown.content}-{size}"'
        keep = {"etag": tag, "cache-control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=keep)
        try:
            made = pictures.get(shown, size)
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        return Response(made.data, media_type=made.kind, headers=keep)

    return app


def _row_answer(row: Row) -> RowAnswer:
    return RowAnswer(id=row.id, path=row.path, label=row.label or None, columns=dict(row.columns))


def _answer(matches: Matches, label: str | None, started: float) -> SearchAnswer:
    hits = [
        HitAnswer(
            rank=hit.rank,
            id=hit.id,
            path=hit.path,
            label=hit.label or None,
            similarity=round(hit.similarity, 6),
            trusted=matches.trusted(hit),
            correct=hit.label == label if label and hit.label else None,
            columns=dict(hit.columns),
        )
        for hit in matches
    ]
    return SearchAnswer(
        found=matches.found,
        threshold=matches.threshold,
        label=label,
        milliseconds=round(1000 * (time.perf_counter() - started), 2),
        hits=hits,
    )


def _answer_errors(app: FastAPI) -> None:
    """Every refusal is one sentence of JSON."""

    @app.exception_handler(RefusedUpload)
    def refused(_: Request, error: RefusedUpload) -> JSONResponse:
        # The rest of a body that is too large is not read: say so to the client.
        return JSONResponse({"error": error.sentence}, error.status, headers={"connection": "close"})

    @app.exception_handler(HTTPException)
    def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(ForerankError)
    def known(_: Request, error: ForerankError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, InputError) else 503)
