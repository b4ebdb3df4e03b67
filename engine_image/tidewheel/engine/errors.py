"""Everything the engine raises on purpose.

EngineError
├── StartError            nothing was served yet; a person must change something (exit code 3)
├── EngineDeadError            the step loop died; the process is about to exit
└── RequestError          one request fails, with the HTTP status and the OpenAI error object it becomes
    ├── InvalidRequestError    400, the client's mistake
    ├── ContextLengthError    400, code context_length_exceeded (clients match on its wording)
    ├── UnauthorizedError      401
    ├── ModelNotFoundError     404
    ├── UnavailableError       503 with Retry-After: draining, full, not ready
    └── GenerationError  500, the engine's fault, for this request alone
"""

from __future__ import annotations


class EngineError(Exception):
    pass


class StartError(EngineError):
    """One sentence that names the object, what is wrong with it and the way out."""


class EngineDeadError(EngineError):
    pass


class RequestError(EngineError):
    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    @property
    def retry_after(self) -> int | None:
        """Whole seconds for the Retry-After header; None where trying again cannot help."""
        return None

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequestError(RequestError):
    status = 400
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    code = "context_length_exceeded"

    def __init__(self, *, max_model_len: int, num_prompt: int, max_tokens: int | None, param: str) -> None:
        if max_tokens is None:
            asked = f"your prompt has {num_prompt} tokens and at least one must be left for the reply"
        else:
            asked = (
                f"you asked for {num_prompt + max_tokens} tokens ({num_prompt} in the prompt, {max_tokens} to write)"
            )
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, {asked}. "
            "Shorten the prompt or lower the number of tokens to write.",
            param=param,
        )


class UnauthorizedError(RequestError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class ModelNotFoundError(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class UnavailableError(RequestError):
    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, code=code)
        self._retry_after = retry_after

    @property
    def retry_after(self) -> int:
        return self._retry_after


class GenerationError(RequestError):
    code = "generation_failed"
