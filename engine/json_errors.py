"""The connection under both HTTP servers, the API's and the control socket's: what no handler has seen is answered in
JSON too, and the connection ends with it.
"""

from __future__ import annotations

from aiohttp import web


class JsonErrors(web.RequestHandler):
    """aiohttp would answer in plain text, or with a page."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer is on its way already")
        status, body = self.refusal(status, exc, message)
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response

    def refusal(self, status: int, exc: BaseException | None, message: str | None) -> tuple[int, bytes]:
        """Status and body of the answer to what aiohttp would have answered so."""
        raise NotImplementedError
