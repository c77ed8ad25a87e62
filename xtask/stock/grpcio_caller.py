"""Calls greeter.v1.Greeter/Hello as stock grpcio does that knows several hosts:

    grpcio_caller.py SERVER,SERVER

It prints the same lines as main.go, until its standard input ends.
"""

import collections
import json
import sys
import threading

import grpc

METHOD = "/greeter.v1.Greeter/Hello"
# How many calls are in flight at a time, and how many seconds each caller rests between two of them.
CALLERS = 4
REST = 0.01
# So many answers show that a server serves this client.
ENOUGH = 10
# gRPC's own health checks, as its guide turns them on.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
}
# The message: one string of a few bytes, which is field 1. No generated code is needed.
REQUEST = b"\x0a\x05stock"

ended = threading.Event()
lock = threading.Lock()
served = collections.Counter()
calls = 0


def note(server, error):
    global calls
    with lock:
        calls += 1
        if error is not None:
            print("failed", repr(error), flush=True)
            return
        served[server] += 1
        if served[server] == ENOUGH:
            print("served", server, flush=True)


def call_until_the_end(hello):
    while not ended.wait(REST):
        try:
            # The reply has a tag and a length before its text.
            note(hello(REQUEST, timeout=10)[2:].decode(), None)
        except grpc.RpcError as error:
            note(None, f"{error.code()}: {error.details()}")


def main():
    options = [("grpc.service_config", json.dumps(SERVICE_CONFIG))]
    channel = grpc.insecure_channel("ipv4:" + sys.argv[1], options=options)
    # Bytes as they are: with no serializer, grpcio passes them on.
    hello = channel.unary_unary(METHOD)
    callers = [threading.Thread(target=call_until_the_end, args=(hello,)) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    sys.stdin.read()
    ended.set()
    for caller in callers:
        caller.join()
    print("calls", calls, flush=True)


main()
