"""A broker as a process of its own: started on a free port, killed, stopped, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.support import secure
from tests.support.ports import free_port
from tests.support.wait import eventually, patience

READY_SECONDS = 120.0


class Broker:
    """`with Broker(tmp_path) as broker:` starts one; its data survives `kill()` and `terminate()`.

    `settings` are overrides of server.properties; `properties` is a file to start from. The port is
    chosen at the first start and kept for later ones, as clients of a restarted broker expect.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        properties: Path | None = None,
        host: str = "127.0.0.1",
        keep_port: bool = True,
        protocol: str = "PLAINTEXT",
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = dict(settings or {})
        self.properties = properties
        self.host = host
        self.port = 0
        self._keep_port = keep_port
        self._protocol = protocol
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.ready_file = folder / "ready"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker was not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the present process printed, both streams together."""
        return self.folder / f"broker-{self._starts}.log"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def command(self, ready_file: Path) -> list[str]:
        # The first member of a group does not wait for others, unless a file has to say it.
        quick = {} if self.properties is not None else {"group.initial.rebalance.delay.ms": "0"}
        settings = {"log.dirs": str(self.data), **quick, **self.settings}
        # A broker that comes back on its port must find it free.
        port = self.port or free_port() if self._keep_port else 0
        settings.setdefault("listeners", f"{self._protocol}://{self.host}:{port}")
        command = [sys.executable, "-m", "tidelog", "start"]
        if self.properties is not None:
            command.append(str(self.properties))
        command += ["--ready-file", str(ready_file)]
        for name, value in settings.items():
            command += ["--override", f"{name}={value}"]
        return command

    def launch(self, stdout: int | None = None) -> None:
        """Start the process without waiting for its first answer."""
        assert not self.running, "the broker is running already"
        self._starts += 1
        (self.folder / "ready").unlink(missing_ok=True)
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(self.ready_file),
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def is_ready(self) -> bool:
        """Whether the process has said that it answers."""
        return self.ready_file.exists()

    def start(self) -> Broker:
        self.launch()
        return self.await_ready()

    def await_ready(self) -> Broker:
        """Wait until the launched process answers, and learn its address."""

        def address() -> str | None:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the broker ended with {self.process.returncode}; it printed:\n{self.log()}"
                )
            return self.ready_file.read_text().strip() if self.is_ready() else None

        try:
            host, _, port = eventually(address, "the broker answers", READY_SECONDS).rpartition(":")
        except AssertionError:
            self.close()
            raise
        self.host, self.port = host.strip("[]"), int(port)
        if self._protocol == secure.PROTOCOL:
            secure.remember(self.bootstrap)
        return self

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended by itself."""
        return self.process.wait(patience(30.0) if timeout is None else timeout)

    def terminate(self, timeout: float | None = None) -> int:
        """SIGTERM, as an operator stops it; the exit code."""
        self.process.terminate()
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL: the process gets no instruction more."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def restart(self, *, kill: bool = False) -> Broker:
        if self.running:
            if kill:
                self.kill()
            else:
                self.terminate()
        return self.start()

    def close(self) -> None:
        self.kill()
        if self._protocol == secure.PROTOCOL:
            secure.forget(self.bootstrap)

    def __enter__(self) -> Broker:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            from tests.support.planted import check_log

            for log in self.folder.glob("broker-*.log"):
                check_log(log.read_text(errors="replace"))
