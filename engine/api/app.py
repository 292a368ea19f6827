"""The HTTP application: routes, errors in one form, and the runner that serves it."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from ..core.interface import EngineHandle
from ..model.generation import GenerationDefaults
from ..telemetry.prometheus import metrics_page
from ..text.chat import ChatTemplate
from ..text.tokenizer import Tokenizer
from .access import require_key
from .errors import ApiError, body_too_large, internal_error, nearest
from .handlers import Handlers
from .idle import IdleConnections
from .server import LAST_ANSWERS_SECONDS, ApiRunner


def create_app(
    handle: EngineHandle,
    tokenizer: Tokenizer | None,
    chat_template: ChatTemplate | None,
    defaults: GenerationDefaults,
    *,
    api_key: str | None,
    max_body_bytes: int,
    max_inflight: Callable[[], int],
    config_revision: Callable[[], int],
    idle: IdleConnections | None = None,
) -> web.Application:
    """The API over one engine. `idle` is told which connections are being served.

    `max_inflight` and `config_revision` are read at every request and scrape: flags change while the engine serves.
    """
    middlewares = [_errors, *([require_key(api_key)] if api_key is not None else [])]
    if idle is not None:
        middlewares.insert(0, idle.middleware())
    app = web.Application(middlewares=middlewares, client_max_size=max_body_bytes)
    handlers = Handlers(handle, tokenizer, chat_template, defaults, max_inflight)
    info = handle.info
    page = metrics_page(
        handle.counters,
        model=info.model,
        page_size=info.page_size,
        pages=info.pages,
        config_revision=config_revision,
    )

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app.add_routes(
        [
            web.post("/v1/completions", handlers.completions),
            web.post("/v1/chat/completions", handlers.chat),
            web.get("/v1/models", handlers.models),
            web.get("/v1/models/{model:.+}", handlers.model),  # a model's id may hold a slash
            web.post("/tokenize", handlers.tokenize),
            web.post("/detokenize", handlers.detokenize),
            web.get("/health", handlers.health),
            web.get("/version", handlers.version),
            web.get("/metrics", metrics),
        ]
    )
    return app


def create_runner(app: web.Application, last_answers: float = LAST_ANSWERS_SECONDS) -> web.AppRunner:
    """The runner to serve `app` with; see ApiRunner."""
    return ApiRunner(app, last_answers)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error answer in OpenAI's form."""
    try:
        return await handler(request)
    except ApiError as error:
        failure = error
    except web.HTTPException as error:
        if error.status < 400:
            raise
        failure = _of_http(request, error)
    except ConnectionError:
        raise  # the client is gone: there is nobody to answer
    except Exception as error:
        failure = internal_error(error)
    return web.Response(
        body=failure.body(), status=failure.status, content_type="application/json", headers=failure.headers
    )


def _of_http(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: unknown path, wrong method, body too large."""
    if isinstance(error, web.HTTPNotFound):
        known = {r.resource.canonical for r in request.app.router.routes() if r.resource is not None}
        return ApiError(
            404, f"there is no {request.path}{nearest(request.path, sorted(known))}", code="unknown_path"
        )
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(
            405,
            f"{request.path} takes {allowed}, not {error.method}",
            code="method_not_allowed",
            headers={"Allow": allowed},
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return body_too_large(request.client_max_size)
    return ApiError(error.status, error.reason)
