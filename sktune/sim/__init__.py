"""A simulated Atlas A3: a cost model estimates the latency of plans; nothing runs on a device."""
