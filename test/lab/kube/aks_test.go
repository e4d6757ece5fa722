// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/cloudfake"
)

// azureMachine is a machine of Azure.
func azureMachine(n gpuHost) cloudfake.Machine {
	return cloudfake.Machine{
		ID: "5f2b7a0e-0000-4000-8000-000000000001", Type: "Standard_NC80adis_H100_v5", Region: "eastus", Zone: "1", Name: n.Name,
		Account: "00000000-0000-4000-8000-00000000000a", PrivateIP: n.IP, MAC: "00:0d:3a:00:00:01",
	}
}

// tells wants the metadata service to have been asked for these since the last call, each once or more, and for nothing else.
func (n gpuHost) tells(requests ...string) {
	n.t.Helper()
	if asked := slices.Compact(slices.Sorted(slices.Values(n.since()))); !slices.Equal(asked, requests) {
		n.t.Errorf("the metadata service was asked for %q, want %q", asked, requests)
	}
}

// neverPrinted wants a word in no file but these, and in no output.
func (n gpuHost) neverPrinted(word string, but ...string) {
	n.t.Helper()
	r := n.Exec("grep", "-rlFs", "--devices=skip", "-e", word, "/etc", "/var", "/run", "/tmp", "/root", "/usr/local")
	for name := range strings.Lines(r.Stdout) {
		if name = strings.TrimSpace(name); !slices.Contains(but, name) {
			n.t.Errorf("%s is in %s", word, name)
		}
	}
	if r := n.Exec("sh", "-c", `journalctl --no-pager | grep -F -e "$1"`, "sh", word); r.Exit == 0 {
		n.t.Errorf("%s is in the journal: %s", word, r.Stdout)
	}
}
