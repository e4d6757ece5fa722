#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# waiting.sh TEXT COMMAND…: runs a command that says nothing for long, and says beside it what it does and for how long:
# on a terminal in one line that goes at the end, else in a line after 2 seconds and then every 15.
text=$1
shift

(
	seconds=0
	while sleep 1; do
		seconds=$((seconds + 1))
		if [ -t 2 ]; then
			printf '\r\033[2K%s … %ds' "$text" "$seconds" >&2
		elif [ $((seconds % 15)) -eq 2 ]; then
			echo "$text … ${seconds}s" >&2
		fi
	done
) &
beside=$!
trap 'kill $beside 2>/dev/null' EXIT

"$@"
result=$?
[ ! -t 2 ] || printf '\r\033[2K' >&2
exit $result
