"""An answer that is not 2xx, raised from anywhere in a handler."""

from __future__ import annotations

from .protocol import Problem


class Answer(Exception):
    """Stop here and answer this."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message)
        self.status = status
        self.problem = problem


def problem(status: int, error: str, message: str, hint: str = "") -> Answer:
    return Answer(status, Problem(error=error, message=message, hint=hint))
