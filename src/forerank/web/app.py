"""The application: routes of the page and of its JSON API."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from pydantic import Field
from starlette.exceptions import HTTPException

from forerank import __version__
from forerank.errors import InputError
from forerank.losses import loss_names
from forerank.search.calibration import promise
from forerank.search.index import Index
from forerank.search.rows import LARGEST_ID, Row
from forerank.web.access import Access
from forerank.web.adding import add_adding_route
from forerank.web.answers import GalleryAnswer, IndexAnswer, PenaltiesAnswer, RowAnswer, ThresholdAnswer
from forerank.web.examples import ExampleVectors
from forerank.web.guard import Guard
from forerank.web.map_routes import add_map_routes
from forerank.web.observe import Observe
from forerank.web.operator_routes import add_operator_routes
from forerank.web.penalties import penalties_of
from forerank.web.pictures import PICTURE_KINDS, PictureStore
from forerank.web.refusals import answer_errors
from forerank.web.resources import Resources
from forerank.web.search_routes import REFUSALS, Conditions, RowId, Text, add_search_routes, sends
from forerank.web.settings import Settings
from forerank.web.shared_search import SharedSearch

HERE = Path(__file__).parent
After = Annotated[int, Query(ge=-1, le=LARGEST_ID, description="id of the last row already shown")]


def create_app(
    index: Index,
    *,
    resources: Resources | None = None,
    refresh: Callable[[], Awaitable[Index]] | None = None,
    **options: Any,
) -> FastAPI:
    """The page and API of an index as an ASGI application.

    Args:
        index: the index, in the state that it has now.
        resources: what is shared with the applications of other states of this index.
        refresh: loads the newest state of the index and returns it; without it no images can be added.
        options: attributes of `Settings`.
    """
    settings = Settings(**options)
    limits = settings.limits
    name = settings.title or Path(index.engine.address.rpartition(":")[2]).name
    resources = resources or Resources(limits)

    @asynccontextmanager
    async def while_it_runs(_: FastAPI) -> AsyncIterator[None]:
        yield
        resources.close()

    app = FastAPI(
        title=f"Forerank: {name}", version=__version__, docs_url=None, redoc_url=None, lifespan=while_it_runs
    )
    app.add_middleware(Access, settings=settings, title=name)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Observe, measurements=resources.measurements)  # the last one is the outermost
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    templates = Jinja2Templates(directory=HERE / "templates")
    index = index.finding_by(SharedSearch(index.engine.search))
    app.state.index = index  # whose model is loaded when it is first needed
    pictures = PictureStore(index)
    vectors = ExampleVectors(index, pictures, resources)
    answer_errors(app)
    add_operator_routes(app, index, resources.measurements)
    if settings.adding and refresh is not None:
        add_adding_route(app, index, vectors, resources, refresh)

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
        promised = None if stored is None or "low" not in stored else promise(stored)
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
            calibrated=bool((stored or {}).get("curve")),
            map=maps.version() > 0,
            precision=promised,
        )

    @app.get("/api/threshold", responses=REFUSALS)
    def threshold() -> ThresholdAnswer:
        """Precision against answered share for every threshold, as `forerank calibrate` measured it."""
        stored = index.meta.get("threshold") or {}
        if not stored.get("curve"):
            raise HTTPException(404, "this index is not calibrated: run forerank calibrate INDEX")
        return ThresholdAnswer.model_validate(stored)

    @app.get("/api/gallery", responses=REFUSALS)
    def gallery(
        after: After = -1,
        limit: Annotated[int, Query(ge=1, le=limits.page)] = 60,
        where: Conditions = [],  # noqa: B006 - FastAPI copies it
        text: Text = "",
    ) -> GalleryAnswer:
        """Indexed images in order, a stretch at a time: all, or those that meet the conditions."""
        rows = index.engine.page(after=after, limit=limit, where=index.filter(where, text))
        return GalleryAnswer(
            rows=[_row_answer(row) for row in rows], next=rows[-1].id if len(rows) == limit else None
        )

    @app.get("/api/values", responses=REFUSALS)
    def values(
        column: Annotated[str, Query(max_length=500)] = "label",
        text: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> list[str]:
        """Some values of a column, or some labels, that contain a text."""
        index.filter([f"{column}="])  # refuses a column that does not exist
        return index.engine.values(column, text, limit)

    maps = add_map_routes(app, index)
    add_search_routes(app, index, vectors, resources.uploads, resources.kept, resources.for_uploads, limits)

    @app.get("/api/rows", responses=REFUSALS)
    def several_rows(
        numbers: Annotated[
            list[Annotated[int, Field(ge=0, le=LARGEST_ID)]],
            Query(alias="id", min_length=1, max_length=limits.page),
        ],
    ) -> list[RowAnswer]:
        """Several indexed images, in the order of their ids in the request."""
        try:
            return [_row_answer(row) for row in index.engine.rows(numbers)]
        except KeyError:
            raise HTTPException(404, "the index does not have all of these rows") from None

    @app.get("/api/rows/{number}", responses=REFUSALS)
    def row(number: RowId) -> RowAnswer:
        """One indexed image."""
        return _row_answer(vectors.row(number))

    @app.get("/api/rows/{number}/penalties", responses=REFUSALS)
    def penalties(
        number: RowId, loss: str = "PNP-Dq", shown: Annotated[int, Query(ge=2, le=40)] = 12
    ) -> PenaltiesAnswer:
        """The ranked list of an indexed image with what a loss charges each wrong image in it."""
        return penalties_of(index, vectors.row(number), loss, shown)

    @app.get(
        "/images/{number}",
        response_class=Response,
        responses={**sends(*PICTURE_KINDS), 304: {"description": "the browser has this picture already"}},
    )
    def image(request: Request, number: RowId, size: str = "small") -> Response:
        """The picture of an indexed image, "small" or "large"."""
        if size not in ("small", "large"):
            raise HTTPException(422, "size is small or large")
        shown = vectors.row(number)
        tag = f'"{shown.content}-{size}"'
        keep = {"etag": tag, "cache-control": "private, no-cache"}  # a rebuilt index has other rows
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
