#!/bin/sh
# Waits until a URL answers 200. usage: wait-ready URL SECONDS
# Used by the units: before the start for the engine next door, after the start for the service itself.
set -eu
[ $# -eq 2 ] || { echo "usage: wait-ready URL SECONDS" >&2; exit 2; }
url=$1
end=$(($(date +%s) + $2))
python=$(dirname -- "$0")/../venv/bin/python
[ -x "$python" ] || python=python3

ask() {
    # -k: the certificate names the host that others use, not the loopback address that is asked here
    if command -v curl >/dev/null 2>&1; then
        curl -skf --max-time 10 -o /dev/null "$url"
    else
        "$python" - "$url" <<'CODE' 2>/dev/null
import ssl, sys, urllib.request
context = ssl._create_unverified_context() if sys.argv[1].startswith("https") else None
urllib.request.urlopen(sys.argv[1], timeout=10, context=context)
CODE
    fi
}

while ! ask; do
    if [ "$(date +%s)" -ge "$end" ]; then
        echo "wait-ready: $url did not answer 200 within $2 s" >&2
        exit 1
    fi
    sleep 2
done
