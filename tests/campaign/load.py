#!/usr/bin/env python3
"""A hostile load on `hadal serve`, among which honest clients must be served.

    python3 tests/campaign/load.py http://127.0.0.1:7117/ --clients 64 --seconds 600 --pid PID

Half of the clients are honest: they read pages as a browser does. The others read slowly, send half
heads, huge heads and bodies, wrong lengths, garbage, foreign names and paths out of the folder, or
hoard streams of events. A token in the address (?token=..) is used by all.

Prints one line of JSON and ends with 1 if something failed:
- a status of 5xx other than 503;
- an honest client that waits for more than 10 s, or is cut off in the middle of an answer;
- a forbidden thing that is answered with 200;
- a server that is gone at the end.
503 is no failure: it is what a full server should say.
"""

import argparse
import collections
import json
import os
import random
import re
import select
import socket
import sys
import threading
import time
import urllib.parse

PATIENCE = 10.0
# Hostile clients give up a connection after this, so that they come again and again.
GRUDGE = 20.0
OUTSIDE = [
    "/runs/..", "/runs/%2e%2e", "/runs/..%2f..%2fetc%2fpasswd", "/api/runs/%2fetc%2fpasswd",
    "/api/runs/..%2f..%2fetc%2fpasswd/series", "/assets/..%2fCargo.toml", "/../../etc/passwd",
    "/suites/..%2f..", "/api/runs/%00/events", "/api/runs/%ff%fe", "//etc/passwd", "/.hadal-index.sqlite",
]
FOREIGN = ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80", "[::2]"]


class Cut(Exception):
    """The connection ended in the middle of an answer."""


class Refused(Exception):
    """The connection was refused or reset before there was an answer."""


class Load:
    def __init__(self, options):
        address = urllib.parse.urlsplit(options.url)
        self.host, self.port = address.hostname, address.port or 80
        tokens = urllib.parse.parse_qs(address.query).get("token")
        self.token = tokens[0] if tokens else None
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures = collections.Counter()
        self.examples = {}
        self.times = []
        self.runs, self.suites = [], []

    def running(self):
        return time.monotonic() < self.end

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def fail(self, kind, example):
        with self.lock:
            self.failures[kind] += 1
            self.examples.setdefault(kind, example)

    def connect(self, patience=PATIENCE):
        try:
            return socket.create_connection((self.host, self.port), timeout=patience)
        except socket.timeout:
            raise
        except OSError as error:
            raise Refused(str(error))

    def head(self, path, method="GET", host=None, more=""):
        host = f"{self.host}:{self.port}" if host is None else host
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{token}{more}".encode()

    def get(self, path, deadline, host=None):
        """Status and body, before the deadline."""
        stream = self.connect(max(0.01, deadline - time.monotonic()))
        with stream:
            data = bytearray()
            try:
                stream.sendall(self.head(path, host=host, more="Connection: close\r\n\r\n"))
                while True:
                    stream.settimeout(max(0.01, deadline - time.monotonic()))
                    piece = stream.recv(65536)
                    if not piece:
                        break
                    data += piece
            except ConnectionError as error:
                if b"\r\n\r\n" not in data:
                    raise Refused(str(error))
        head, found, body = bytes(data).partition(b"\r\n\r\n")
        if not found:
            if not data:
                raise Refused("closed without an answer")
            raise Cut(path)
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length and len(body) < int(length.group(1)):
            raise Cut(f"{path}: {len(body)} of {length.group(1).decode()} bytes")
        self.judge(status, path)
        return status, body

    def judge(self, status, what):
        self.count(f"status {status}")
        if status >= 500 and status != 503:
            self.fail(f"status {status}", what)

    # Honest clients.

    def pages(self):
        quote = lambda name: urllib.parse.quote(name, safe="")
        pages = ["/", "/", "/api/runs", "/api/rows?since=0", "/api/machine", "/api/suites", "/assets/chart.js"]
        for run in random.sample(self.runs, min(3, len(self.runs))):
            run = quote(run)
            pages += [f"/runs/{run}", f"/api/runs/{run}/series", f"/api/runs/{run}/resources", f"/api/runs/{run}"]
        several = "&".join(f"run={quote(run)}" for run in random.sample(self.runs, min(6, len(self.runs))))
        if several:
            pages += [f"/compare?{several}", f"/api/compare?{several}"]
        pages += [f"/suites/{quote(suite)}" for suite in self.suites[:2]]
        return pages

    def honest(self):
        while self.running():
            path = random.choice(self.pages())
            start = time.monotonic()
            try:
                status, _ = self.get(path, start + PATIENCE)
                if status == 503:
                    time.sleep(0.5)
                elif status not in (200, 404, 422):
                    self.fail(f"honest status {status}", path)
                with self.lock:
                    self.times.append(time.monotonic() - start)
                self.count("honest")
            except Refused:
                # A full server may close a connection. A server that is gone is found at the end.
                self.count("honest refused")
                time.sleep(0.5)
            except Cut as error:
                self.fail("cut off", str(error))
            except (socket.timeout, TimeoutError):
                self.fail("hang", path)

    # Hostile clients. What happens to them is their trouble, unless they get what they must not.

    def hostile(self, name, act):
        while self.running():
            try:
                act()
                self.count(name)
            except (OSError, Refused, Cut, ValueError, IndexError):
                self.count(f"{name} cut")
                time.sleep(0.02)

    def status(self, stream, what, patience=PATIENCE):
        """The status of an answer, if there is one."""
        stream.settimeout(patience)
        answer = stream.recv(64)
        if answer.startswith(b"HTTP/1."):
            status = int(answer.split(b" ", 2)[1][:3])
            self.judge(status, what)
            return status
        return None

    def wait_closed(self, stream, name):
        """Whether the server ends a connection that keeps it waiting."""
        until = min(self.end, time.monotonic() + GRUDGE + 10)
        while time.monotonic() < until:
            if select.select([stream], [], [], 0.5)[0] and not stream.recv(65536):
                self.count(f"{name} closed by server")
                return

    def slow_reader(self):
        with socket.socket() as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stream.settimeout(PATIENCE)
            stream.connect((self.host, self.port))
            stream.sendall(self.head(random.choice(["/", "/api/runs", "/assets/chart.js"]), more="\r\n") * 20)
            until = min(self.end, time.monotonic() + GRUDGE)
            while time.monotonic() < until:
                if not stream.recv(64):
                    return
                time.sleep(0.2)

    def half_head(self):
        with self.connect() as stream:
            stream.sendall(self.head("/", more="X-Slow: "))
            if random.random() < 0.5:
                self.wait_closed(stream, "half head")
            else:
                until = min(self.end, time.monotonic() + GRUDGE)
                while time.monotonic() < until:
                    stream.sendall(b"x")
                    time.sleep(0.5)

    def huge_head(self):
        with self.connect() as stream:
            more = random.choice([
                "X-Huge: " + "x" * 300_000 + "\r\n\r\n",
                "".join(f"X-{place}: y\r\n" for place in range(5000)) + "\r\n",
            ])
            path = random.choice(["/", "/" + "a" * 200_000])
            stream.sendall(self.head(path, more=more))
            if self.status(stream, "huge head") == 200:
                self.fail("huge head accepted", path[:20])

    def huge_body(self):
        with self.connect() as stream:
            length = 50_000_000
            run = urllib.parse.quote(random.choice(self.runs), safe="") if self.runs else "x"
            more = f"Content-Length: {length}\r\n\r\n"
            stream.sendall(self.head(f"/api/runs/{run}/note", "PUT", more=more))
            for _ in range(length // 65536):
                if select.select([stream], [], [], 0)[0]:
                    break
                stream.sendall(b"x" * 65536)
            if self.status(stream, "huge body") == 200:
                self.fail("huge body accepted", run)

    def lying_length(self):
        with self.connect() as stream:
            more = random.choice([
                "Content-Length: 1000\r\n\r\nabc",
                "Content-Length: 18446744073709551615\r\n\r\nabc",
                "Content-Length: -1\r\n\r\nabc",
                "Content-Length: 3\r\nContent-Length: 7\r\n\r\nabc",
                "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
                "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
            ])
            method = random.choice(["GET", "PUT", "POST"])
            path = "/api/runs/x/note" if method == "PUT" else "/"
            stream.sendall(self.head(path, method, more=more))
            self.status(stream, f"lying length: {method} {more[:40]}")
            self.wait_closed(stream, "lying length")

    def hoard(self):
        run = urllib.parse.quote(random.choice(self.runs), safe="") if self.runs else "x"
        streams = []
        try:
            for _ in range(10):
                stream = self.connect()
                streams.append(stream)
                stream.sendall(self.head(f"/api/runs/{run}/events", more="\r\n"))
            for stream in streams:
                self.status(stream, "events")
            time.sleep(max(0, min(random.uniform(1, GRUDGE), self.end - time.monotonic())))
        finally:
            for stream in streams:
                stream.close()

    def garbage(self):
        with self.connect() as stream:
            stream.sendall(random.choice([
                os.urandom(random.randint(1, 5000)),
                b"\x16\x03\x01\x02\x00" + os.urandom(500),
                b"GET / HTTP/9.9\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET " + os.urandom(200) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\r\n" * 3000,
                b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"",
            ]))
            stream.shutdown(socket.SHUT_WR)
            self.status(stream, "garbage")

    def outside(self):
        path = random.choice(OUTSIDE)
        status, body = self.get(path, time.monotonic() + PATIENCE)
        if status == 200 or b"root:" in body:
            self.fail("out of the folder", path)

    def foreign(self):
        host = random.choice(FOREIGN)
        status, _ = self.get("/api/runs", time.monotonic() + PATIENCE, host=host)
        if status == 200:
            self.fail("foreign name", host)

    def run(self, clients, only=None):
        first = self.get("/api/runs", time.monotonic() + PATIENCE)
        known = json.loads(first[1])
        self.runs = [run["id"] for run in known["runs"]]
        self.suites = known["suites"]
        kinds = [self.slow_reader, self.half_head, self.huge_head, self.huge_body, self.lying_length,
                 self.hoard, self.garbage, self.outside, self.foreign]
        threads = []
        if only and only != "honest":
            kinds = [act for act in kinds if act.__name__ == only]
        for place in range(clients):
            if only == "honest" or (only is None and place % 2 == 0):
                threads.append(threading.Thread(target=self.honest, daemon=True))
            else:
                act = kinds[place // 2 % len(kinds)]
                name = act.__name__.replace("_", " ")
                threads.append(threading.Thread(target=self.hostile, args=(name, act), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def resident(pid, field="VmRSS"):
    """Megabytes of a process, or None."""
    try:
        with open(f"/proc/{pid}/status") as status:
            kilobytes = re.search(rf"{field}:\s+(\d+)", status.read())
            return int(kilobytes.group(1)) // 1000 if kilobytes else None
    except OSError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the address that hadal serve printed")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pid", type=int, help="the server's process, to measure its memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one kind of client, such as honest or half_head")
    parser.add_argument("--settle", type=float, default=5, help="seconds before memory is measured at the end")
    options = parser.parse_args()
    random.seed(options.seed)
    load = Load(options)
    report = {"clients": options.clients, "seconds": options.seconds}
    memory = {"before": resident(options.pid)} if options.pid else None
    peak = [0]
    if options.pid:
        def watch():
            while load.running():
                peak[0] = max(peak[0], resident(options.pid) or 0)
                time.sleep(0.2)
        threading.Thread(target=watch, daemon=True).start()
    try:
        load.run(options.clients, options.only)
    except (OSError, Refused, Cut, ValueError) as error:
        load.fail("no server", str(error))
    time.sleep(options.settle)
    # Slow clients may still hold places for a moment, but an honest one must be served.
    alive = False
    for _ in range(5):
        try:
            alive = load.get("/api/runs", time.monotonic() + PATIENCE)[0] == 200
        except (OSError, Refused, Cut):
            pass
        if alive:
            break
        time.sleep(2)
    if not alive:
        load.fail("server gone", options.url)
    if memory is not None:
        memory.update(peak=peak[0], after=resident(options.pid))
        report["rss_mb"] = memory
    times = sorted(load.times)
    rank = lambda share: round(times[min(len(times) - 1, int(share * len(times)))], 4) if times else None
    report.update(
        honest={"requests": len(times), "p50_s": rank(0.5), "p99_s": rank(0.99), "worst_s": rank(1)},
        counts=dict(sorted(load.counts.items())),
        failures=sum(load.failures.values()),
        failed=dict(load.failures),
        examples=load.examples,
    )
    print(json.dumps(report))
    return 1 if load.failures else 0


if __name__ == "__main__":
    sys.exit(main())
