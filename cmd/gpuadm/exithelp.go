// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exitTopic is `gpuadm help exit`: what a script does with each exit code.
func exitTopic() *cobra.Command {
	return &cobra.Command{Use: "exit", Short: "what the exit codes mean, and what a script does with each (gpuadm help exit)", Long: exitHelp()}
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("The exit code says what to do next. It means the same for all verbs.\n\n")
	for _, x := range exitCodes() {
		fmt.Fprintf(&b, "  %-3d %s\n", x.code, strings.ReplaceAll(x.means, "\n", "\n      "))
	}
	return b.String() + exitScript
}

// An exitCode is a code and what it means, in lines as help shows them.
type exitCode struct {
	code  int
	means string
}

func exitCodes() []exitCode {
	return []exitCode{
		{0, `The machine is converged, or the command has printed its answer. plan
exits with 0 whether changes are pending or not; see plan --exit-code.
After an apply with 0, changes may still be deferred: it names them. An
unattended apply also exits with 0 where an undo holds applies; it says
so.`},
		{exitCannot, `The machine cannot converge, or a change failed: an operator must fix the
cause. The lines because and try say why and what to do. Apply touched
nothing if it could know beforehand; else it rolled back the failed stage,
also where the time of --deadline was over. gate: kubelet may not start
yet.`},
		{exitUsage, `The command line or the spec is wrong; nothing was touched. Fix it: the
same command fails again.`},
		{exitPending, `Changes are pending (plan --exit-code, status, mig fit). This is no error.
Run gpuadm apply. doctor: it found a fault, and says how to fix it.`},
		{exitReboot, `Some changes take effect only after a reboot. Reboot, then apply again;
the boot unit does that where it is installed. With --reboot apply exits
with 4 too, while the machine shuts down.`},
		{exitAgain, `Busy: another gpuadm is running, or apply waits for another component, or
a signal stopped the run. Wait, and run the same command again: it
continues from there.`},
	}
}

const exitScript = `
gpuadm uses no other codes: 128 and above mean that a signal ended the process,
124 comes from timeout(1). After these, too, run apply again: it continues from
the journal.

With -o json an error is an object on stdout with the keys "error", "exit" (the
code), "because", "undone" (the changes that were rolled back) and "try".

In a script:

  while :; do
    gpuadm apply --unattended; code=$?
    [ $code -eq 75 ] || break
    sleep 30
  done
  case $code in
    0) ;;
    4) systemctl reboot ;;
    *) exit $code ;;
  esac`
