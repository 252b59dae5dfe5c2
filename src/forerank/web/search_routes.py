"""The routes of searching: examples, filters, uploads that are kept."""

import asyncio
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import StringConstraints
from starlette.concurrency import run_in_threadpool

from forerank.search.distinct import DUPLICATE, Answer, search_distinct
from forerank.search.engine import Filter, Vectors
from forerank.search.examples import NEGATIVE_SHARE, combine
from forerank.search.index import Hit, Index, Matches
from forerank.search.rows import LARGEST_ID
from forerank.web.answers import ErrorAnswer, HitAnswer, SearchAnswer, UploadAnswer, VoteAnswer
from forerank.web.examples import HOW, Example, ExampleVectors, parse_example
from forerank.web.kept_uploads import KeptUploads
from forerank.web.pictures import PICTURE_KINDS
from forerank.web.uploads import Limits, Uploads, unless_gone

RowId = Annotated[int, PathParameter(ge=0, le=LARGEST_ID, description="row of the index")]
Text = Annotated[str, Query(max_length=200, description="text in path or label, in upper or lower case")]
Conditions = Annotated[
    list[Annotated[str, StringConstraints(max_length=500)]],
    Query(max_length=10, description="COLUMN=VALUE or label=VALUE; may be given several times"),
]
ExampleTexts = list[Annotated[str, StringConstraints(max_length=120)]]
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 404, 408, 413, 415, 422, 503)
}
BYTES = {"type": "string", "format": "binary"}
PICTURE_FORM = {"type": "object", "properties": {"image": BYTES}, "required": ["image"]}
BODY = {
    "requestBody": {
        "required": True,
        "content": {"image/*": {"schema": BYTES}, "multipart/form-data": {"schema": PICTURE_FORM}},
    }
}


def sends(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """What a route that answers with bytes of these content types says of itself in the API's description."""
    return {200: {"content": {kind: {"schema": BYTES} for kind in kinds}}, **REFUSALS}


@dataclass(frozen=True)
class Wanted:
    """What is to be found, whatever the query is."""

    k: int
    where: Filter
    one_per_class: bool
    fold: float | None


def add_search_routes(
    app: FastAPI,
    index: Index,
    vectors: ExampleVectors,
    uploads: Uploads,
    kept: KeptUploads,
    for_uploads: Executor,
    limits: Limits,
) -> None:
    """Add the routes to an application; what strangers send is decoded in the threads `for_uploads`."""

    def wanted_of(
        k: Annotated[int, Query(ge=1, le=limits.neighbours, description="images to find")] = 24,
        where: Conditions = [],  # noqa: B006 - FastAPI copies it
        text: Text = "",
        one_per_class: Annotated[bool, Query(description="only the nearest image of each label")] = False,
        fold: Annotated[
            bool, Query(description=f"hide near-duplicates (similarity from {DUPLICATE} on)")
        ] = False,
    ) -> Wanted:
        return Wanted(k, index.filter(where, text), one_per_class, DUPLICATE if fold else None)

    wishes = Annotated[Wanted, Depends(wanted_of)]

    @app.post("/api/search", responses=REFUSALS, openapi_extra=BODY)
    async def search_picture(request: Request, wanted: wishes) -> SearchAnswer:
        """Find the images nearest to a picture; its bytes are the body of the request."""

        def answer(data: bytes) -> SearchAnswer:
            started = time.perf_counter()
            return find(vectors.embed(data), wanted, started=started)

        async with uploads.receive(request) as data:
            return await unless_gone(request, for_uploads, partial(answer, data))

    @app.get(
        "/api/search",
        responses=REFUSALS,
        description="Find the images nearest to examples. The query is the mean of the examples to be like "
        f"minus {NEGATIVE_SHARE:g} times the mean of the examples to be unlike (all of length one), scaled "
        "to length one. The examples themselves are not found.",
    )
    async def search_examples(
        wanted: wishes,
        like: Annotated[ExampleTexts, Query(min_length=1, max_length=32, description=HOW)],
        unlike: Annotated[ExampleTexts, Query(max_length=32, description="as like")] = [],  # noqa: B006
    ) -> SearchAnswer:
        positives, negatives = [[parse_example(text) for text in texts] for texts in (like, unlike)]
        if all(map(vectors.is_known, (*positives, *negatives))):
            return await run_in_threadpool(answer_examples, positives, negatives, wanted)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(for_uploads, answer_examples, positives, negatives, wanted)

    @app.get("/api/rows/{number}/search", responses=REFUSALS)
    def search_row(number: RowId, wanted: wishes) -> SearchAnswer:
        """Find the images nearest to an indexed one, without itself."""
        return answer_examples([Example(number, None)], [], wanted)

    @app.post("/api/uploads", responses=REFUSALS, openapi_extra=BODY)
    async def keep_upload(request: Request) -> UploadAnswer:
        """Keep a picture for a while, under an id that nobody can guess, to search with it by address."""

        def keep(data: bytes) -> UploadAnswer:
            vector = vectors.embed(data)  # first: only what can be read is kept
            name = kept.keep(data)
            kept.remember(name, vectors.key(), vector)
            return UploadAnswer(id=name, seconds=limits.kept_seconds)

        async with uploads.receive(request) as data:
            return await unless_gone(request, for_uploads, partial(keep, data))

    @app.get("/uploads/{name}", response_class=Response, responses=sends(*PICTURE_KINDS))
    async def show_upload(name: Annotated[str, PathParameter(max_length=60)]) -> Response:
        """An upload that is kept, as a picture of at most 1,200 pixels."""
        made = await asyncio.get_running_loop().run_in_executor(for_uploads, vectors.show, name)
        return Response(made.data, media_type=made.kind, headers={"cache-control": "private, max-age=3600"})

    def answer_examples(positives: list[Example], negatives: list[Example], wanted: Wanted) -> SearchAnswer:
        started = time.perf_counter()
        like = np.stack([vectors.of(example) for example in positives])
        unlike = np.stack([vectors.of(example) for example in negatives]) if negatives else None
        rows = {example.row for example in (*positives, *negatives) if example.row is not None}
        alone = len(positives) == 1 and not negatives
        label = None
        if alone and positives[0].row is not None and positives[0].box is None:
            label = vectors.row(positives[0].row).label or None
        # One vector as it is stored, to the last bit: dividing by its length again may change that.
        query = like[0] if alone else combine(like, unlike)
        return find(query, wanted, rows, label, started, calibrated=alone)

    def find(
        query: Vectors,
        wanted: Wanted,
        without: set[int] = set(),  # noqa: B006 - never changed
        label: str | None = None,
        started: float = 0.0,
        *,
        calibrated: bool = True,
    ) -> SearchAnswer:
        answer = search_distinct(
            index,
            query,
            wanted.k,
            wanted.where,
            without=without,
            one_per_class=wanted.one_per_class,
            fold=wanted.fold,
        )
        return to_answer(answer, label, started, calibrated=calibrated)


def to_answer(answer: Answer, label: str | None, started: float, *, calibrated: bool) -> SearchAnswer:
    """A search's result as JSON; a threshold counts only for the kind of query it was calibrated with."""
    matches = answer.matches if calibrated else Matches(answer.matches.hits, None)

    def hit_answer(hit: Hit, folded: tuple[Hit, ...] = ()) -> HitAnswer:
        return HitAnswer(
            rank=hit.rank,
            id=hit.id,
            path=hit.path,
            label=hit.label or None,
            similarity=round(hit.similarity, 6),
            trusted=matches.trusted(hit),
            correct=hit.label == label if label and hit.label else None,
            columns=dict(hit.columns),
            folded=[hit_answer(behind) for behind in folded],
        )

    vote = answer.vote
    return SearchAnswer(
        found=matches.found,
        threshold=matches.threshold,
        label=label,
        answer=None
        if vote is None
        else VoteAnswer(
            label=vote.label,
            votes=vote.votes,
            voters=vote.voters,
            similarity=round(vote.similarity, 6),
            support=round(vote.support, 6),
            trusted=vote.trusted or not calibrated,
        ),
        milliseconds=round(1000 * (time.perf_counter() - started), 2),
        hits=[hit_answer(result.hit, result.folded) for result in answer.results],
    )
