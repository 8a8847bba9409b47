"""The checks of a machine that trains, in the order in which they are made.

They need no more than the client does: pyzmq, msgpack and the standard library.
"""

from __future__ import annotations

from typing import Final

from gradwatch_server.cli.doctor.check import Check
from gradwatch_server.cli.doctor.client import connection, http, process
from gradwatch_server.cli.doctor.client.subject import ClientSide

CLIENT_CHECKS: Final[tuple[Check[ClientSide], ...]] = (
    Check(
        "switch",
        "`GRADWATCH_DISABLED`",
        "",
        "`attach` returns a watch that does nothing",
        process.look_at_switch,
    ),
    Check(
        "packages",
        "versions of gradwatch, Python, pyzmq, msgpack and torch; torch is not imported",
        "one that the wire needs is missing, or not of a version that is asked for",
        "torch is missing or too old",
        process.look_at_packages,
    ),
    Check(
        "device",
        "where there is an NVIDIA driver: the build of torch, Triton, a C compiler",
        "",
        "torch is built without CUDA, or there is nothing to compile kernels with",
        process.look_at_device,
    ),
    Check(
        "foreach",
        "`GRADWATCH_FOREACH`",
        "",
        "the fast norms are switched off",
        process.look_at_foreach,
    ),
    Check(
        "spill",
        "the directory in `GRADWATCH_SPILL`",
        "it cannot be written",
        "less than 1 GiB is free in it",
        process.look_at_spill,
    ),
    Check(
        "endpoint",
        "`--endpoint` or `GRADWATCH_ENDPOINT`, as `attach` reads it",
        "it is none, or there are several: each is looked at by itself",
        "",
        connection.look_at_endpoint,
    ),
    Check(
        "name",
        "the host's name",
        "it has no address, or only ones that are not asked for",
        "",
        connection.look_at_name,
        needs=("endpoint",),
    ),
    Check(
        "connection",
        "whether the port takes a connection",
        "it is refused, or nothing answers within 5 s",
        "",
        connection.look_at_connection,
        needs=("name",),
    ),
    Check(
        "peer",
        "what speaks at the port",
        "it is an HTTP server, be it that of an aggregator, something that says nothing, or "
        "anything but an aggregator that takes records",
        "",
        connection.look_at_peer,
        needs=("connection",),
    ),
    Check(
        "key",
        "the key file in `--keys` or `GRADWATCH_KEYS`",
        "it is missing, open to others, malformed, or its keys do not belong together",
        "",
        connection.look_at_key,
    ),
    Check(
        "handshake",
        "ZeroMQ's handshake, with the key",
        "keys are asked for by one side only, or this one is not known there",
        "",
        connection.look_at_handshake,
        needs=("peer", "key"),
    ),
    Check(
        "answer",
        "whether the aggregator answers a sign of life, and how long that takes",
        "it does not within 5 s, or in another protocol",
        "a round trip takes longer than 250 ms",
        connection.look_at_answer,
        needs=("handshake",),
    ),
    Check(
        "http",
        "`--url`, `GRADWATCH_URL`, or port 8420 of the endpoint's host",
        "no aggregator answers there, and the address was given",
        "none answers at the address that was guessed: training does not need it",
        http.look_at_http,
        needs=("endpoint",),
    ),
    Check(
        "ready",
        "`/readyz`",
        "it takes nothing in",
        "",
        http.look_at_ready,
        needs=("http",),
    ),
    Check(
        "token",
        "whether runs may be read with the token in `GRADWATCH_TOKEN`",
        "",
        "they may not",
        http.look_at_token,
        needs=("http",),
    ),
    Check(
        "version",
        "the aggregator's version beside this one",
        "",
        "they differ in more than the last number",
        http.look_at_version,
        needs=("http",),
    ),
    Check(
        "clock",
        "the aggregator's clock beside this one",
        "",
        "they differ by more than 2 s",
        http.look_at_clock,
        needs=("http",),
    ),
    Check(
        "proxies",
        "`http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`",
        "",
        "other programs would ask a proxy for the aggregator",
        http.look_at_proxies,
        needs=("endpoint",),
    ),
)
