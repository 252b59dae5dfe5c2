"""The route that adds an image to the index."""

import asyncio
import io
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from PIL import Image
from starlette.exceptions import HTTPException

from forerank.errors import InputError
from forerank.search.add import NewImage, place_of
from forerank.search.engine import Filter
from forerank.search.index import Index
from forerank.search.model import refuse_other_engine
from forerank.web.answers import RowAnswer
from forerank.web.examples import ExampleVectors
from forerank.web.resources import Resources
from forerank.web.search_routes import BODY, REFUSALS
from forerank.web.uploads import Form


def add_adding_route(
    app: FastAPI,
    index: Index,
    vectors: ExampleVectors,
    resources: Resources,
    refresh: Callable[[], Awaitable[Index]],
) -> None:
    """Add the route; `refresh` loads the newest state of the index and returns it."""

    @app.post("/api/images", status_code=201, responses=REFUSALS, openapi_extra=BODY)
    async def add_image(request: Request) -> RowAnswer:
        """Add an image: its bytes as the body, or a form with a file, `label` and further columns.

        With bytes as the body, label and columns are parameters of the address. The image is on the disk and
        found by searches when this is answered. The same image with the same label is one row.
        """
        async with resources.uploads.receive_form(request) as form:
            loop = asyncio.get_running_loop()
            image = await loop.run_in_executor(
                resources.for_uploads, prepare, form, dict(request.query_params)
            )
            newest = await resources.adding.add(image, index, refresh)
            row = await asyncio.to_thread(find, newest, image)
        resources.measurements.added.inc()
        return row

    def prepare(form: Form, parameters: dict[str, str]) -> NewImage:
        columns = {**parameters, **form.fields}
        label = columns.pop("label", "")
        taken = {"path", "split", "is_query", "is_gallery"} & set(columns)
        if taken or "" in columns:
            raise InputError(f"a column cannot be named {min(taken, default='')!r}: choose another name.")
        vector = vectors.embed(form.picture)  # first: only what can be decoded is looked at here
        network = index.retriever.network  # what has just computed the vector
        refuse_other_engine(index.engine.address, index.meta["model"], network.engine, network.precision)
        with Image.open(io.BytesIO(form.picture)) as opened:
            kind = str(opened.format)
        columns = {name: value for name, value in columns.items() if value}
        return NewImage(place_of(form.picture, label, kind), form.picture, label, columns, vector)

    def find(newest: Index, image: NewImage) -> RowAnswer:
        for row in newest.engine.page(limit=10, where=Filter(image.label, image.path)):
            if row.path == image.path:
                return RowAnswer(id=row.id, path=row.path, label=row.label or None, columns=dict(row.columns))
        raise HTTPException(503, "the image was added, and the index was rebuilt without it at once")
