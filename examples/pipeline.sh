#!/usr/bin/env bash
# Uses untrusted filters in a pipeline: each one reads standard input, writes standard output, and can do nothing else.
#
#     ./pipeline.sh < words.txt
set -euo pipefail

filter() { belljar run "$1" --stdin - --timeout 5s --memory 128M -c "$2"; }

filter python 'import sys; [print(word.lower()) for line in sys.stdin for word in line.split()]' |
    filter bash 'sort | uniq -c | sort -k1,1nr -k2' |
    filter python 'import sys; [print(*reversed(line.split())) for line in sys.stdin]'
