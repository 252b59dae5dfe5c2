"""Errors as answers: one sentence of JSON, with the status that fits."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerank.errors import ForerankError, InputError
from forerank.web.guard import HEADERS
from forerank.web.uploads import RefusedUpload, read_rest


def answer_errors(app: FastAPI) -> None:
    """Every refusal is one sentence of JSON."""

    @app.exception_handler(RefusedUpload)
    async def refused(request: Request, error: RefusedUpload) -> JSONResponse:
        if error.unread:
            await read_rest(request)
        return JSONResponse({"error": error.sentence}, error.status, headers=error.headers)

    @app.exception_handler(HTTPException)
    def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> JSONResponse:
        sentence = "the server has a fault: its log says more"
        headers = {key.decode(): value.decode() for key, value in HEADERS}
        return JSONResponse({"error": sentence}, 500, headers=headers)  # the error itself is logged

    @app.exception_handler(ForerankError)
    def known(_: Request, error: ForerankError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, InputError) else 503)
