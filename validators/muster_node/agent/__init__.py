"""One job on the node, from plan to result: fence, in-use guard, probe processes, telemetry."""
