"""Vectors for Ollama's clients, from backends that are no Ollama."""

from __future__ import annotations

from proxy.dialects.ollama.embedding import UPSTREAM_PATH, answered, asked_of_backend
from proxy.dialects.ollama.writing import refused
from proxy.errors import UpstreamInvalid, UpstreamUnavailable
from proxy.exchange import Exchange
from proxy.net.headers import AS_JSON, OF_ENCODING, decodable, said_otherwise
from proxy.net.inflate import Undecodable
from proxy.net.responses import body_of, error_of, plain_body, plain_error
from proxy.options import Options
from proxy.stages.naming import address_read
from proxy.stages.passing import failure, pass_to
from proxy.stages.routing import Router, has_path
from proxy.telemetry.events import FirstByte, Routed, Sent
from proxy.telemetry.journal import Journal


async def embed(exchange: Exchange, journal: Journal, router: Router, options: Options) -> None:
    """Have texts embedded by whatever backend has the model; an Ollama is asked as the client asked.

    Raises:
        BadRequest, BodyTooLarge: see `address_read`.
        UpstreamUnavailable: the backend can't be reached, or gives no vectors.
    """
    wire = await exchange.body(options.max_body)
    with exchange.watched():
        to = await address_read(exchange, router, wire, options.max_body, asks=False)
        route = to.route
        if await has_path(route.upstream, exchange.path):
            await pass_to(exchange, journal, to)
            return
        body = asked_of_backend(await exchange.decoded(wire, options.max_body), exchange.path, route.model)
        journal.tell(Routed(route.upstream.name, route.model))
        journal.tell(Sent("vectors"))
        headers = journal.carried(said_otherwise(exchange.headers))
        try:
            response = await route.upstream.send(
                "POST", UPSTREAM_PATH, headers, body, drop=OF_ENCODING, accept=decodable
            )
            journal.tell(FirstByte())
            if response.status_code != 200:
                error = plain_error(response, await error_of(response))
                await exchange.reply(response.status_code, [AS_JSON], refused(error))
                return
            came = await body_of(response, options.max_answer)
            plain = plain_body(response, came, options.max_answer)
        except UpstreamUnavailable as lost:
            journal.tell(failure(lost))
            raise
        except Undecodable as wrong:
            raise UpstreamInvalid(f"The backend's answer can't be decoded: {wrong}.") from None
        await exchange.reply(200, [AS_JSON], answered(plain or came, exchange.path, route.model))
