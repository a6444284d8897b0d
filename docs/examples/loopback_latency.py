"""How long a byte takes over this machine's own network stack and back: a slow kernel shows here first."""

import socket
import statistics
import threading

from muster_node.probe import Context, Metric, Param, Probe


class LoopbackLatency(Probe):
    """Round trips of one byte over loopback TCP."""

    name = "loopback_latency"
    stage = "performance"
    doc = "Median round trip of one byte over loopback TCP"
    params = {"rounds": Param(200, "round trips to measure")}
    metrics = {"loopback_round_trip": Metric("us", "median time of one byte there and back")}
    loads = False

    def run(self, context: Context) -> None:
        """Measure. Time comes from the hardware's clock, so that a simulated machine can be slow."""
        clock = context.hardware.clock
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=_echo, args=(server,), daemon=True).start()
            with socket.create_connection(server.getsockname(), timeout=5) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                times = []
                for _ in range(int(context.params["rounds"])):
                    began = clock.now()
                    client.sendall(b"x")
                    client.recv(1)
                    times.append((clock.now() - began) * 1e6)
        context.emit("loopback_round_trip", "node", value=statistics.median(times), samples=len(times))


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1):
            connection.sendall(data)
