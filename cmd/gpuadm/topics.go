// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/stages"
)

// topics returns the pages of `gpuadm help` that belong to no verb. gpuadm builds each text only to print it.
func topics() (all []*cobra.Command) {
	for _, t := range []struct {
		name, about string
		text        func() string
	}{
		{"spec", "what node.toml may say", specHelp},
		{"stages", "the stages, in their order", stagesHelp},
		{"exit", "what the exit codes mean, and what a script does with each", exitHelp},
		{"environment", "which environment variables gpuadm reads", func() string { return environment }},
	} {
		topic := &cobra.Command{Use: t.name, Short: t.about + " (gpuadm help " + t.name + ")"}
		topic.SetHelpFunc(func(c *cobra.Command, args []string) {
			c.Long = t.text()
			c.Parent().HelpFunc()(c, args)
		})
		all = append(all, topic)
	}
	return all
}

// stagesHelp lists the stages.
func stagesHelp() string {
	var b strings.Builder
	b.WriteString("An apply goes through these stages, in this order. plan, apply and status take the names\nof some.\n\n")
	for _, st := range stages.Sequence() {
		fmt.Fprintf(&b, "  %-12s %s\n", st.Name, st.About)
	}
	return b.String()
}

// specHelp lists every key of node.toml, from the table that also has the checks.
func specHelp() string {
	var b strings.Builder
	b.WriteString("The spec is /etc/gpuadm/node.toml, then /etc/gpuadm/node.d/*.toml in name order; later\nwins by key. Without a section, its stage changes nothing. gpuadm refuses a file that\nusers other than root can write to, or to a folder on the way to it.\n")
	section := "-"
	for _, k := range spec.Keys() {
		if k.Section != section {
			section = k.Section
			if section != "" {
				fmt.Fprintf(&b, "\n%-32s # %s\n", "["+section+"]", spec.About(section))
			} else {
				b.WriteString("\n")
			}
		}
		def := k.Default
		if def == "" {
			def = "…"
		}
		doc := k.Doc
		if len(k.Allowed) > 0 {
			doc += " (" + strings.Join(k.Allowed, ", ") + ")"
		}
		fmt.Fprintf(&b, "  %-30s # %s\n", k.Name+" = "+def, doc)
	}
	return b.String()
}

// exitHelp describes each exit code for scripts.
func exitHelp() string {
	var b strings.Builder
	b.WriteString("The exit code says what to do next. It means the same for all verbs.\n\n")
	for _, x := range exitCodes() {
		fmt.Fprintf(&b, "  %-3d %s\n", x.code, strings.ReplaceAll(x.means, "\n", "\n      "))
	}
	return b.String() + exitScript
}

// An exitCode is a code and its meaning, in lines as help shows them.
type exitCode struct {
	code  int
	means string
}

func exitCodes() []exitCode {
	return []exitCode{
		{0, `The machine is converged, or the command has printed its answer. plan
exits with 0 whether changes are pending or not; see plan --exit-code.
After an apply with 0, changes may still be deferred: it names them.`},
		{exitCannot, `The machine cannot converge, or a change failed: an operator must fix the
cause. The lines because and try say why and what to do. Apply touched
nothing if it could know beforehand; else it rolled back the failed stage,
also where the time of --deadline was over. gate: kubelet may not start
yet.`},
		{exitUsage, `The command line or the spec is wrong; nothing was touched. Fix it: the
same command fails again.`},
		{exitPending, `Changes are pending (plan --exit-code, status, mig fit). This is no
error. Run gpuadm apply. apply --unattended: an undo holds it, and nothing
was done; with --boot that is 0, since kubelet may start. doctor: it found
a fault, and says how to fix it.`},
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

With -o json apply, bake, repair and undo print an object for each event, and
end with an object with the run's result, whatever the code: "exit" (the code),
"changed" and "deferred" (how many), "run", "held" and "reboot". An error of any
verb is an object of that form, with "error", "because", "undone" (the changes
that were rolled back) and "try".

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

const environment = `Every flag can be given by a variable: its name in capitals after GPUADM_, with _
for -. A flag on the command line wins. For example:

  GPUADM_FILE=node.toml     --file node.toml
  GPUADM_ROOT=/mnt/image    --root /mnt/image
  GPUADM_OUTPUT=json        --output json
  GPUADM_NO_COLOR=true      --no-color
  GPUADM_DEADLINE=10m       --deadline 10m, for the verbs that have it

Set by gpuadm itself, for a process of the same run: GPUADM_REEXECED, GPUADM_PACKAGES.

Of other programs: NO_COLOR and TERM=dumb turn colours off; JOURNAL_STREAM, from
systemd, has gpuadm log to the journal; KUBERNETES_EXEC_INFO, from kubelet, says
which version of a credential it wants; KUBERNETES_SERVICE_HOST and
KUBERNETES_SERVICE_PORT name the API server in a pod. GOGC is Go's own. gpuadm
ignores SSL_CERT_FILE and SSL_CERT_DIR: they do not decide which certificates it trusts.`
