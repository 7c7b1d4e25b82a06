"""The endpoints of the server."""

from __future__ import annotations

import asyncio
import json
from typing import Awaitable, Callable, List, NamedTuple, Sequence

import prometheus_client
from starlette.responses import Response

from adapter_bert.common import errors
from adapter_bert.serving.engine import LoadedTask
from adapter_bert.serving.server import inference_v2, page, tfserving
from adapter_bert.serving.server.call import Call, json_response
from adapter_bert.serving.server.examples import Example
from adapter_bert.serving.server.request_body import RequestError, parse_object

Handler = Callable[[Call], Awaitable[Response]]

# ------------------------------------------------------------------------------------------ TensorFlow Serving


async def tf_predict(call: Call) -> Response:
    """Answer `:predict`."""
    content = parse_object(await call.body())
    answer = await call.compute(lambda task: tfserving.parse_predict(task, content, call.server.limits))
    return json_response(tfserving.format_predict(answer.task, content, answer.results))


async def tf_classify(call: Call) -> Response:
    """Answer `:classify`."""
    return await _tf_results(call, "classify")


async def tf_regress(call: Call) -> Response:
    """Answer `:regress`."""
    return await _tf_results(call, "regress")


async def _tf_results(call: Call, method: str) -> Response:
    content = parse_object(await call.body())

    def parse(task: LoadedTask) -> List[Example]:
        tfserving.check_method(task, method)
        return tfserving.parse_examples(task, content, call.server.limits)

    answer = await call.compute(parse)
    return json_response(tfserving.format_results(method, answer.results))


async def tf_status(call: Call) -> Response:
    """Answer with the state of a task."""
    with call.task() as (_, version):
        return json_response(tfserving.format_status(version))


async def tf_metadata(call: Call) -> Response:
    """Answer with the inputs and outputs of a task."""
    with call.task() as (task, version):
        return json_response(tfserving.format_metadata(task, call.name, version))


# ------------------------------------------------------------------------------------- Open Inference Protocol


async def v2_server(call: Call) -> Response:
    """Answer with the name of the server and its extensions."""
    return json_response({"name": "adapter_bert", "version": "1", "extensions": list(inference_v2.EXTENSIONS)})


async def v2_health(call: Call) -> Response:
    """Answer that the server is alive and ready: it accepts connections only when the bank is loaded."""
    return json_response({"live": True, "ready": True})


async def v2_model(call: Call) -> Response:
    """Answer with the inputs and outputs of a task."""
    with call.task() as (task, version):
        return json_response(inference_v2.describe(task, call.name, version))


async def v2_ready(call: Call) -> Response:
    """Answer whether a task is served."""
    with call.task():
        return json_response({"name": call.name, "ready": True})


async def v2_infer(call: Call) -> Response:
    """Answer a request for inference."""
    body = await call.body()
    header = call.request.headers.get(inference_v2.HEADER_LENGTH)
    parsed: List[inference_v2.InferRequest] = []

    def parse(task: LoadedTask) -> Sequence[Example]:
        parsed.append(inference_v2.parse(task, body, header, call.server.limits))
        inference_v2.check_outputs(task, parsed[0].content)
        return parsed[0].examples

    answer = await call.compute(parse, lambda: parsed[0].seconds)
    formatted = inference_v2.format_answer(answer.task, call.name, answer.version, parsed[0].content, answer.results)
    if formatted.header_length is None:
        return Response(formatted.body, media_type="application/json")
    headers = {inference_v2.HEADER_LENGTH: str(formatted.header_length)}
    return Response(formatted.body, 200, headers, "application/octet-stream")


async def v2_index(call: Call) -> Response:
    """Answer with the tasks of the bank that the tenant may use."""
    await call.body()
    states = await asyncio.get_running_loop().run_in_executor(None, call.server.bank.states)
    shown = [
        {
            "name": state.name,
            "version": str(state.version or ""),
            "state": "UNAVAILABLE" if state.version is None else "READY",
            "reason": state.reason,
        }
        for state in states
        if call.tenant.may_use(state.name)
    ]
    return Response(json.dumps(shown), media_type="application/json")


async def v2_load(call: Call) -> Response:
    """Load a pack of the bank."""
    return await _manage(call, call.server.bank.load)


async def v2_unload(call: Call) -> Response:
    """Stop serving a task."""
    return await _manage(call, call.server.bank.unload)


async def _manage(call: Call, action: Callable[[str], None]) -> Response:
    await call.body()
    missing = RequestError(404, f"There is no task {call.name!r:.200}, or its pack cannot be loaded.")
    if not call.tenant.may_manage(call.name):
        if call.tenant.may_use(call.name):
            raise RequestError(403, "This key may use the task, but not load or unload it.")
        raise missing
    try:
        await asyncio.get_running_loop().run_in_executor(None, action, call.name)
    except errors.UserError:
        raise missing from None
    call.facts["task"] = call.name
    return json_response({})


# ------------------------------------------------------------------------------------------------------- other


async def metrics(call: Call) -> Response:
    """Answer with the metrics for Prometheus."""
    if not call.tenant.metrics:
        raise RequestError(403, "This key may not read the metrics.")
    return Response(call.server.metrics.text(), media_type=prometheus_client.CONTENT_TYPE_LATEST)


async def index(call: Call) -> Response:
    """Answer with the web page."""
    return Response(page.PAGE, 200, {"Content-Security-Policy": page.POLICY}, "text/html")


async def favicon(call: Call) -> Response:
    """Answer that there is no icon."""
    return Response(status_code=204)


_MODEL = "/v1/models/{name}"


class Endpoint(NamedTuple):
    """A path and what answers it."""

    path: str
    method: str
    handler: Handler
    needs_key: bool


ENDPOINTS = [
    Endpoint("/", "GET", index, False),
    Endpoint("/favicon.ico", "GET", favicon, False),
    Endpoint("/metrics", "GET", metrics, True),
    Endpoint("/v2", "GET", v2_server, False),
    Endpoint("/v2/health/live", "GET", v2_health, False),
    Endpoint("/v2/health/ready", "GET", v2_health, False),
    Endpoint("/v2/repository/index", "POST", v2_index, True),
    Endpoint("/v2/repository/models/{name}/load", "POST", v2_load, True),
    Endpoint("/v2/repository/models/{name}/unload", "POST", v2_unload, True),
    *(
        Endpoint(f"{start}{version}{end}", method, handler, True)
        for version in ("", "/versions/{version}")
        for start, end, method, handler in (
            (_MODEL, ":predict", "POST", tf_predict),
            (_MODEL, ":classify", "POST", tf_classify),
            (_MODEL, ":regress", "POST", tf_regress),
            (_MODEL, "/metadata", "GET", tf_metadata),
            (_MODEL, "", "GET", tf_status),
            ("/v2/models/{name}", "/infer", "POST", v2_infer),
            ("/v2/models/{name}", "/ready", "GET", v2_ready),
            ("/v2/models/{name}", "", "GET", v2_model),
        )
    ),
]
