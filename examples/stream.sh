#!/usr/bin/env bash
# Prints the output of a run as it is written: server-sent events, read by curl and the shell.
#
#     BELLJAR_URL=http://localhost:8787 ./stream.sh
set -euo pipefail

show() {
    case $1 in
    stdout) text=${2#*'"text":"'} && printf '%b' "${text%'"}'}" ;;
    *) echo "[$1]" ;;
    esac
}

request='{"language": "python", "code": "import time\nfor i in range(3):\n    print(\"step\", i, flush=True)\n    time.sleep(0.2)"}'

curl -sN --json "$request" -H 'Accept: text/event-stream' "${BELLJAR_URL:-http://localhost:8787}/v1/runs" |
    while read -r field value; do
        case $field in
        event:) event=$value ;;
        data:) show "$event" "$value" ;;
        esac
    done
