"""Two network namespaces joined by a slow link: every packet between them is counted, delayed and rate-limited.

The link is a pair of TUN devices whose packets this process carries, so it needs no kernel module for delays (many
machines have no `netem`). Needs root and /dev/net/tun. Nothing leaves the namespaces: neither has another way out.
"""

import contextlib
import fcntl
import os
import queue
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1500
BUFFERED_PACKETS = 1000
"""As in netem: a packet that finds so many waiting is dropped, and TCP slows down."""
POLL_S = 0.2

NETWORK = "10.213.77"
ADDRESSES = (f"{NETWORK}.1", f"{NETWORK}.2")


@dataclass
class Way:
    """One direction of the link.

    Attributes:
        num_bytes: of IP packets that were carried, headers included.
        num_packets: that were carried.
        num_dropped: that found the buffer full.
    """

    num_bytes: int = 0
    num_packets: int = 0
    num_dropped: int = 0
    waiting: "queue.Queue[tuple[float, bytes] | None]" = field(default_factory=lambda: queue.Queue(BUFFERED_PACKETS))


class SlowLink:
    """The two namespaces and what joins them; a context manager.

    Attributes:
        names: of the namespaces, the first holds `ADDRESSES[0]`.
        ways: from the first to the second, and back.

    Args:
        delay_s: of every packet, each way.
        bits_per_s: rate of each way.
    """

    def __init__(self, *, delay_s: float, bits_per_s: float) -> None:
        self._delay_s = delay_s
        self._bits_per_s = bits_per_s
        self.names = tuple(f"tauscope-{os.getpid()}-{side}" for side in ("box", "laptop"))
        self.ways = (Way(), Way())
        self._stop = threading.Event()

    def command(self, side: int, words: Sequence[str]) -> list[str]:
        """A command line that runs inside one of the namespaces."""
        return ["ip", "netns", "exec", self.names[side], *words]

    @contextlib.contextmanager
    def up(self) -> Iterator["SlowLink"]:
        """Make namespaces and link; everything is removed at the end."""
        with contextlib.ExitStack() as stack:
            devices = []
            for name, address in zip(self.names, ADDRESSES, strict=True):
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
                devices.append(stack.enter_context(_tun(f"ts{os.getpid() % 100_000}{len(devices)}")))
                _ip("link", "set", devices[-1].name, "netns", name)
                inside = ("-n", name)
                _ip(*inside, "link", "set", "lo", "up")
                _ip(*inside, "address", "add", f"{address}/24", "dev", devices[-1].name)
                _ip(*inside, "link", "set", devices[-1].name, "mtu", str(MTU), "up")
            threads = []
            for way, source, sink in ((self.ways[0], *devices), (self.ways[1], *reversed(devices))):
                threads.append(threading.Thread(target=self._take, args=(way, source.descriptor), daemon=True))
                threads.append(threading.Thread(target=_give, args=(way, sink.descriptor), daemon=True))
            for thread in threads:
                thread.start()
            try:
                yield self
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()

    def _take(self, way: Way, descriptor: int) -> None:
        """Read packets and give each the time at which it arrives."""
        free_at = 0.0
        while not self._stop.is_set():
            if not select.select([descriptor], [], [], POLL_S)[0]:
                continue
            packet = os.read(descriptor, 1 << 16)
            free_at = max(time.monotonic(), free_at) + 8 * len(packet) / self._bits_per_s
            try:
                way.waiting.put_nowait((free_at + self._delay_s, packet))
            except queue.Full:
                way.num_dropped += 1
        way.waiting.put(None)


def _give(way: Way, descriptor: int) -> None:
    """Deliver packets at their times."""
    while (item := way.waiting.get()) is not None:
        arrives, packet = item
        time.sleep(max(0.0, arrives - time.monotonic()))
        with contextlib.suppress(OSError):  # the device is going down
            os.write(descriptor, packet)
        way.num_bytes += len(packet)
        way.num_packets += 1


@dataclass(frozen=True)
class _Device:
    name: str
    descriptor: int


@contextlib.contextmanager
def _tun(name: str) -> Iterator[_Device]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        yield _Device(name, descriptor)
    finally:
        os.close(descriptor)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_no_link() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    name = f"tauscope-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs `ip netns`: {error}"
    return None
