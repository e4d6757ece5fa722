// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

// exitTopic is `gpuadm help exit`: what a script does with each of our exit codes.
func exitTopic() *cobra.Command {
	return &cobra.Command{Use: "exit", Short: "what the exit codes mean, and what a script does with each (gpuadm help exit)", Long: exitCodes}
}

const exitCodes = `The exit code says what to do next. It means the same for all verbs.

  0   It is converged, or the question is answered: go on. plan exits with 0
      whether changes are pending or not; with --exit-code it tells the two
      apart. An apply with 0 may have left what can only come later, which it
      names, and it does nothing where it is unattended and an undo holds, which
      it says.
  1   It cannot be, or it failed: a person has to look. The lines because and
      try say why and what to do. What apply could tell beforehand was refused
      with nothing touched; where something failed at work, its stage was put
      back. The same where the time of --deadline is over. gate: kubelet may not
      start yet.
  2   The command line or the spec is wrong; nothing was touched. Mend it: the
      same again fails again.
  3   Changes are pending, say plan --exit-code, status and mig fit. Nothing is
      wrong. Decide, then gpuadm apply.
  4   What could be made is made, and some of it holds only after a reboot.
      Reboot, then apply again; the boot unit does that where it is installed.
      With --reboot it ends with 4 too: the machine is going down.
  75  Not now: another gpuadm is at work, or something is waited for that comes
      by itself or from others, or a signal stopped the run. Wait, and run the
      same command again: it goes on from where it is.

Other codes are not ours: from 128 on a signal ended the process, and 124 comes
from timeout(1). After these, too, apply again: it goes on from the journal.

With -o json an error is an object on stdout; "exit" in it is the code, beside
"error", "because", "undone" and "try".

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
