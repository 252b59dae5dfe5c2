"""The page on which labels are corrected, copies removed and classes looked at: routes and JSON API."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from forerank import __version__
from forerank.data import BadImageError, read_image
from forerank.search.corrections import Corrections, Move
from forerank.search.curation import Curation, LabelledCuration
from forerank.search.picture_quality import RULES
from forerank.web.guard import Guard
from forerank.web.pictures import SIDES, EncodedPicture, encode_picture
from forerank.web.refusals import answer_errors
from forerank.web.settings import Settings

HERE = Path(__file__).parent
CORRECTED, REMOVED = "corrected.csv", "removed"


class DecisionRequest(BaseModel):
    """One decision about one row."""

    row: int
    action: str
    label: str | None = None


class MoveRequest(BaseModel):
    """Move the files of removed rows; a dry run only says what would be moved."""

    dry_run: bool = True


def same_site_only(request: Request) -> None:
    """Refuse what another web site makes the browser send: JSON from this page's own address only."""
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
        raise HTTPException(403, "this page takes decisions from itself only")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send JSON")


def create_curation_app(curation: Curation, corrections: Corrections, output: Path, title: str) -> FastAPI:
    """The page of a curation; decisions go to `corrections`, files to `output`."""
    table = curation.table
    labels, paths, splits = table.label.tolist(), table.path.tolist(), table.split.tolist()
    looked = curation if isinstance(curation, LabelledCuration) else None
    deciding = threading.Lock()  # one journal, several threads

    @asynccontextmanager
    async def while_it_runs(_: FastAPI) -> AsyncIterator[None]:
        yield
        with deciding:
            if corrections.decisions():
                corrections.write_csv(output / CORRECTED)
            corrections.close()

    app = FastAPI(
        title=title,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=while_it_runs,
    )
    app.add_middleware(Guard, settings=Settings())
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    templates = Jinja2Templates(directory=HERE / "templates")
    answer_errors(app)

    @app.exception_handler(OSError)
    def not_written(_: Request, error: OSError) -> JSONResponse:
        where = f": {error.filename}" if error.filename else ""
        return JSONResponse({"error": f"not written, {error.strerror or error}{where}"}, 503)

    row_number = Annotated[int, PathParameter(ge=0, lt=len(table))]
    written = [Depends(same_site_only)]

    def told(row: int) -> dict[str, Any]:
        return {"row": row, "path": paths[row], "label": labels[row], "split": splits[row]}

    def state() -> dict[str, Any]:
        decided = corrections.decisions()
        return {
            "decisions": {row: {"action": d.action, "label": d.label} for row, d in decided.items()},
            "changed": sum(d.action == "change" and d.label != labels[d.row] for d in decided.values()),
            "removed": sum(d.action == "remove" for d in decided.values()),
            "moved": len(corrections.moved),
        }

    def move_answer(moves: list[Move], dry_run: bool) -> dict[str, Any]:
        told = [{"path": paths[move.row], "to": str(move.target)} for move in moves]
        return {"dry_run": dry_run, "files": told, "folder": str(output / REMOVED), **state()}

    @app.get("/", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        return templates.TemplateResponse(request, "curation.html", {"title": title})

    @app.get("/frame.css", response_class=Response)
    def frame() -> Response:
        """The style of the reports, so that all pages look alike."""
        style = resources("forerank.report").joinpath("page.css").read_text(encoding="utf-8")
        return Response(style, media_type="text/css")

    @app.get("/api/collection")
    def collection() -> dict[str, Any]:
        """What there is to look at, and every decision so far."""
        return {
            "title": title,
            "images": len(table),
            "labelled": looked is not None,
            "claim": str(curation),
            "basis": looked.claim.basis() + "." if looked is not None and looked.claim.shown else "",
            "suspects": [
                {
                    **told(suspect.row),
                    "suggestion": suspect.suggestion,
                    "agreement": suspect.agreement,
                    "before_nearest": suspect.before_nearest,
                    "own": [told(row) for row in suspect.own],
                    "other": [told(row) for row in suspect.other],
                }
                for suspect in (looked.suspects if looked else ())
            ],
            "copies": [
                {
                    "rows": [told(row) for row in group.rows],
                    "correlation": round(group.correlation, 4),
                    "identical": group.identical,
                    "leaks": group.leaks,
                }
                for group in curation.copies
            ],
            "rules": RULES,
            "issues": [
                {**told(issue.row), "kind": issue.kind, "reason": issue.reason} for issue in curation.issues
            ],
            "classes": [
                {
                    "label": one.label,
                    "split": one.split,
                    "images": one.images,
                    "recall": one.recall,
                    "confusions": [{"label": label, "images": count} for label, count in one.confusions],
                }
                for one in (looked.classes if looked else ())
            ],
            "labels": table.classes.tolist(),
            **state(),
        }

    @app.get("/api/class")
    def images_of_class(
        label: Annotated[str, Query(max_length=500)], split: Annotated[str, Query(max_length=20)]
    ) -> list[dict[str, Any]]:
        """The images of one class in one part of the data."""
        rows = np.flatnonzero((table.label == label) & (table.split == split))
        if not len(rows):
            raise HTTPException(404, f"there is no class {label!r} in {split}")
        return [told(row) for row in rows[:500].tolist()]

    @app.post("/api/decide", dependencies=written)
    def decide(decision: DecisionRequest) -> dict[str, Any]:
        """Write one decision down; it is on the disk when the answer comes."""
        with deciding:
            corrections.decide(decision.row, decision.action, decision.label)
            return state()

    @app.post("/api/undo", dependencies=written)
    def undo() -> dict[str, Any]:
        """Take the last decision back."""
        with deciding:
            taken_back = corrections.undo()
            return {"undone": None if taken_back is None else told(taken_back.row), **state()}

    @app.post("/api/write", dependencies=written)
    def write() -> dict[str, Any]:
        """Write the table that trains next."""
        with deciding:
            corrections.write_csv(output / CORRECTED)
            return {"file": str(output / CORRECTED), **state()}

    @app.post("/api/move", dependencies=written)
    def move(request: MoveRequest) -> dict[str, Any]:
        """Move the files of removed images to a folder, or only say which."""
        with deciding:
            place = output / REMOVED
            moves = corrections.planned_moves(place) if request.dry_run else corrections.move(place)
            return move_answer(moves, request.dry_run)

    @app.post("/api/restore", dependencies=written)
    def restore() -> dict[str, Any]:
        """Put the moved files back."""
        with deciding:
            return {"restored": corrections.restore(), **state()}

    @lru_cache(maxsize=2000)
    def encoded(row: int, size: str) -> EncodedPicture:
        x1, y1, x2, y2 = (0, 0, 0, 0) if table.box is None else (int(v) for v in table.box[row])
        boxed = x2 > x1 and y2 > y1
        place = corrections.moved.get(row, table.files[row])
        try:
            picture = read_image(place, shrink_to=None if boxed else SIDES[size])
        except (BadImageError, OSError) as error:
            raise HTTPException(404, f"{paths[row]} cannot be shown: {error}") from error
        picture = picture.crop((x1, y1, x2, y2)) if boxed else picture
        return encode_picture(picture, SIDES[size])

    @app.get("/images/{row}", response_class=Response)
    def image(row: row_number, size: str = "small") -> Response:
        """The picture of a row, "small" or "large"."""
        if size not in SIDES:
            raise HTTPException(422, "size is small or large")
        made = encoded(row, size)
        return Response(made.data, media_type=made.kind, headers={"cache-control": "private, max-age=3600"})

    return app
