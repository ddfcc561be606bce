"""Stands before a server and keeps each stream of events that it answers: `stream_relay.py ROOT FOLDER`. Prints its own root.
A file is named `N.part` while its stream is read, and `N.events` once the server has ended it; its first line is the path."""

import http.client
import http.server
import itertools
import pathlib
import sys

# Seconds that a server may be silent.
SILENCE = 120
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class Relay(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.folder = root.removeprefix("http://"), pathlib.Path(folder)
        self.numbers = itertools.count(1)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def hand_on(self):
        self.close_connection = True
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=SILENCE)
        upstream.request(self.command, self.path, self.body(), headers)
        response = upstream.getresponse()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        kept = None
        if response.getheader("content-type", "").startswith("text/event-stream"):
            kept = self.server.folder / f"{next(self.server.numbers)}.part"
            kept.write_text(self.path.split("?")[0] + "\n")
        try:
            while piece := response.read1(65536):
                if kept:
                    with kept.open("ab") as file:
                        file.write(piece)
                self.wfile.write(piece)
        except OSError:
            # The client has left, and what was not sent has no order.
            if kept:
                kept.unlink()
            return
        finally:
            upstream.close()
        if kept:
            kept.rename(kept.with_suffix(".events"))

    do_POST = do_GET = do_DELETE = do_PATCH = do_HEAD = hand_on


if __name__ == "__main__":
    relay = Relay(*sys.argv[1:])
    print(f"relay: http://127.0.0.1:{relay.server_port}", flush=True)
    relay.serve_forever()
