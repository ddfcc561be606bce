"""Stands between the gateway and a real server on stdio, and lets the server fail on command:
`relay.py FIFO COMMAND...`. Each line of the FIFO is one of

kill      the server is gone in the middle of whatever it does
hang      the server stops, and says nothing any more
garbage   what is no protocol comes between two messages
half      half a message comes, then the end
flood     one line of 100 MB comes between two messages
"""

import os
import signal
import subprocess
import sys
import threading

GARBAGE = b'Listening for your orders\n{"jsonrpc": "2.0", "id": \n\n{"jsonrpc":"2.0","id":"nobody","result":{}}\n\xff\xfe\n[]\n'
HALF = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"te'
FLOOD = 100_000_000

fifo, *command = sys.argv[1:]
child = subprocess.Popen(command, stdin=sys.stdin, stdout=subprocess.PIPE)
output, turn = sys.stdout.buffer, threading.Lock()


def send(data):
    with turn:
        output.write(data)
        output.flush()


def end():
    child.kill()
    os._exit(9)


def obey():
    with open(fifo) as orders:
        for order in orders:
            match order.strip():
                case "kill":
                    end()
                case "hang":
                    child.send_signal(signal.SIGSTOP)
                case "garbage":
                    send(GARBAGE)
                case "half":
                    send(HALF)
                    end()
                case "flood":
                    send(b"x" * FLOOD + b"\n")


threading.Thread(target=obey, daemon=True).start()
for line in child.stdout:
    send(line)
sys.exit(child.wait())
