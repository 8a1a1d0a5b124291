"""What `longfat relay` tells Prometheus, as others' strict parsers read it. Needs no privileges."""

import re
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as open_metrics

PATIENCE_S = 30
ATTEMPTS = 5


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def first_words(process, log):
    """Where the relay listens, None when it never came to that, and all that it said until then."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # Asked before its words are read, so that the last are among them.
        is_over = process.poll() is not None or time.monotonic() > deadline
        said = log.read_text()
        listens = re.search(r"listens on (\S+):(\d+)\n", said)
        if listens or is_over:
            return listens and (listens[1], int(listens[2])), said
        time.sleep(0.01)


def start(program, place, server_port):
    """A relay, where it listens, and the port of its metrics: another when somebody took that before the relay did."""
    file, log = place / "relay.toml", place / "stderr"
    for _ in range(ATTEMPTS):
        metrics = free_port()
        file.write_text(
            f"name = 'py{metrics}'\nmetrics = '127.0.0.1:{metrics}'\ncontrol = {{ socket = '{place}/socket' }}\n"
            f"[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:{server_port}'\n"
            "[[rule]]\nname = 'web'\nqueue = { controller = 'none' }\n"
        )
        with log.open("w") as stderr:
            process = subprocess.Popen([program, "relay", "run", file], stderr=stderr)
        listens, said = first_words(process, log)
        if listens:
            return process, listens, metrics
        process.kill()
        process.wait()
        if "Address already in use" not in said:
            break
    raise AssertionError(said)


@pytest.fixture()
def relay(program, tmp_path):
    """A relay for an echo server, one connection through it; the address of its metrics."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo():
        connection, _ = server.accept()
        while data := connection.recv(1000):
            connection.sendall(data)

    threading.Thread(target=echo, daemon=True).start()
    process, listens, metrics = start(program, tmp_path, server.getsockname()[1])
    try:
        with socket.create_connection(listens, timeout=PATIENCE_S) as client:
            client.sendall(b"x" * 500)
            received = 0
            while received < 500:
                received += len(client.recv(1000))
            yield f"http://127.0.0.1:{metrics}/metrics"
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def scrape(address, accept):
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(families):
    return {(sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}


def relayed(found):
    wanted = {value for (name, *labels), value in found.items()
              if name == "longfat_relay_relayed_bytes_total" and ("direction", "client_to_server") in labels}
    return max(wanted, default=0)


def test_the_metrics_are_open_metrics_to_a_strict_parser(relay):
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        kind, text = scrape(relay, accept)
        families = list(open_metrics.text_string_to_metric_families(text))
        if relayed(samples(families)) == 500:
            break
        assert time.monotonic() < deadline, text
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    by_name = {family.name: family for family in families}
    assert by_name["longfat_relay_relayed_bytes"].type == "counter"
    assert by_name["longfat_relay_relayed_bytes"].unit == "bytes"
    assert by_name["longfat_relay"].type == "info"
    assert by_name["longfat_relay_queue_target_seconds"].type == "gauge"
    rules = {sample.labels["rule"] for sample in by_name["longfat_relay_connections"].samples}
    assert rules == {"web", "default"}
    for family in families:
        assert family.documentation, family.name


def test_the_older_format_says_the_same(relay):
    kind, text = scrape(relay, "text/plain;version=0.0.4")
    assert kind.startswith("text/plain; version=0.0.4")
    older = samples(text_format.text_string_to_metric_families(text))
    newer = samples(open_metrics.text_string_to_metric_families(scrape(relay, "application/openmetrics-text")[1]))
    assert set(older) == set(newer)


def test_what_is_no_open_metrics_is_refused_by_this_parser():
    for wrong in ("# TYPE a counter\na 1\n# EOF\n", "# TYPE a gauge\na 1\n", "# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n"):
        with pytest.raises(ValueError):
            list(open_metrics.text_string_to_metric_families(wrong))
