// SPDX-License-Identifier: Apache-2.0

package kube

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed testdata/mps-control.log
var mpsRecord string

// mpsAsked is a command that a control daemon of MPS was given, and its answer.
type mpsAsked struct{ command, answer string }

// mpsAnswers reads what a daemon's log says of commands and answers.
func mpsAnswers(log string) (all []mpsAsked) {
	for line := range strings.Lines(log) {
		_, said, ok := strings.Cut(strings.TrimSpace(line), "] ")
		command, asked := strings.CutPrefix(said, "Cmd:")
		switch {
		case !ok:
		case asked:
			all = append(all, mpsAsked{command: command})
		case len(all) > 0 && said != "UI closed" && said != "Accepting connection..." && said != "NEW UI":
			all[len(all)-1].answer = said
		}
	}
	return all
}

// MPSProgram is a stand-in for nvidia-cuda-mps-control, which only NVIDIA may distribute: a script
// made of testdata/mps-control.log. It answers the commands of that record as the real one did, and
// no others. That the log does not have: the end of a daemon, and a question where none runs. Sources:
// nvidia-cuda-mps-control(1), "quit"; globus-labs/mof-generation-at-scale issue 29 ("Cannot find MPS
// control daemon process") and the exit status 1 in NVIDIA/k8s-device-plugin issue 679.
func MPSProgram() (string, error) {
	cases := ""
	last := ""
	seen := map[string]bool{}
	for _, a := range mpsAnswers(mpsRecord) {
		words := strings.Fields(a.command)
		verb := words[0]
		answer := ""
		switch {
		case a.answer == "":
			answer = ":"
		case strings.HasPrefix(verb, "set_") && a.answer == words[len(words)-1]+".0":
			answer = `echo "${command##* }.0" >"$kept"; cat "$kept"`
			last = a.answer
		case strings.HasPrefix(verb, "get_") && a.answer == last:
			answer = `cat "$kept"`
		default:
			return "", fmt.Errorf("cannot make the stand-in: the record answers %q with %q, whose form is not known", a.command, a.answer)
		}

		if !seen[verb] {
			cases += "\t" + verb + "*) " + answer + " ;;\n"
		}
		seen[verb] = true
	}

	return strings.Replace(mpsScript, "CASES", cases, 1), nil
}

const mpsScript = `#!/bin/sh
# A stand-in for nvidia-cuda-mps-control, made of the log of a real one: MPSProgram in test/lab/kube.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
log=${CUDA_MPS_LOG_DIRECTORY:-/var/log/nvidia-mps}
pid=$pipe/nvidia-cuda-mps-control.pid
kept=$pipe/stand-in
say() { echo "[$(date '+%F %T.000') Control $$] $1" >>"$log/control.log"; }

if [ "$1" = serve ]; then
	say "Starting control daemon using socket $pipe/control"
	say "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=$pipe"
	while :; do sleep 60; done
fi
if [ "$1" = -d ]; then
	"$0" serve </dev/null >/dev/null 2>&1 &
	echo $! >"$pid"
	exit 0
fi

if ! kill -0 "$(cat "$pid" 2>/dev/null)" 2>/dev/null; then
	echo "Cannot find MPS control daemon process"
	exit 1
fi
while IFS= read -r command || [ -n "$command" ]; do
	say "Accepting connection..."
	say "NEW UI"
	say "Cmd:$command"
	case $command in
CASES	quit) kill "$(cat "$pid")"; rm -f "$pid" "$kept" ;;
	*) echo "the record of this stand-in has no $command" >&2; exit 2 ;;
	esac
	say "UI closed"
	command=
done
`
