"""Milvus on this machine, as a process that can be killed and started again: for benchmarks and tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MilvusServer:
    """`milvus-lite server` as a process of its own, that can be killed and started again."""

    def __init__(self, data: Path) -> None:
        self.data, self.port = data, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.address = f"milvus:http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "milvus_lite.cmdline", "server", "--data-dir", str(self.data)]
        return [*command, "--host", "127.0.0.1", "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        # A session of its own: what the server starts is killed with it.
        log = self.data.with_suffix(".log")
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command(),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )
        for _ in range(6000):
            if self.answers():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.kill()
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{type(self).__name__} did not start: {said or 'it said nothing'}")

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            children = []
            with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended by itself
                children = psutil.Process(self.process.pid).children(recursive=True)
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            psutil.wait_procs(children, timeout=10)  # they hold ports and locks until they are gone
            self.process = None


class RealMilvusServer(MilvusServer):
    """Milvus standalone, from the package `milvus`: a process that starts another one, the server."""

    # The launcher takes the next port where one is not free. Without SO_REUSEADDR a port on which a killed
    # server had connections counts as taken for a minute, and the server would come back at another address.
    lease = 60  # seconds after which a server that got no processor time gives up
    LAUNCHER = """
import socket, sys, milvus
bind = socket.socket.bind
def bind_again(self, address):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bind(self, address)
socket.socket.bind = bind_again
sys.exit(milvus.main())
"""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.LAUNCHER, "--data", str(self.data), "--proxy-port", str(self.port)]

    def environment(self) -> dict[str, str]:
        """Its own etcd on ports of its own: where another one has the usual 2380, the server crashes."""
        settings = self.data / "etcd.json"
        if not settings.exists():  # the ports are part of what etcd stores
            clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            settings.parent.mkdir(parents=True, exist_ok=True)
            urls = {
                "listen-client-urls": clients,
                "advertise-client-urls": clients,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": peers,
                "initial-cluster": f"default={peers}",
            }
            settings.write_text(json.dumps(urls))
        own = {"ETCD_CONFIG_PATH": str(settings), "COMMON_SESSION_TTL": str(self.lease)}
        return {**super().environment(), **own}

    def answers(self) -> bool:
        """Whether it serves: the port opens some seconds before."""
        if not super().answers():
            return False
        from grpc import RpcError
        from pymilvus import MilvusClient, MilvusException

        try:
            client = MilvusClient(f"http://127.0.0.1:{self.port}", timeout=5)
            client.list_collections(timeout=5)  # pymilvus may have kept a connection to the server before
        except (MilvusException, RpcError):
            return False
        client.close()
        return True
