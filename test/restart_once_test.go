// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRestartOnce: a daemon is one line of a plan, and is restarted once, where its configuration imports more than when gpuadm first
// edited it: then what it reads is another list of files, and gpuadm's part lies in another file.
func TestRestartOnce(t *testing.T) {
	const config, imports = "/srv/containerd/config.toml", "imports = [\"/srv/containerd/d/*.toml\"]\n"
	all := machines(t)
	n := all[slices.IndexFunc(all, func(m machine) bool { return m.name == "a100-mixed-t4" })].boot(t)
	others := func(old, new string) {
		t.Helper()
		found, err := n.ReadFile(config)
		if err != nil || !bytes.Contains(found, []byte(old)) {
			t.Fatalf("%v\n%s", err, found)
		}
		must.OK(t, n.WriteFile(config, bytes.Replace(found, []byte(old), []byte(new), 1), host.Attr{Mode: 0o644}))
	}
	once := func(what string, changes []converge.Change) {
		t.Helper()
		restarts := 0
		for _, c := range changes {
			if c.Kind == "restart" {
				restarts++
			}
		}
		if restarts != 1 {
			t.Errorf("%s: containerd is to be restarted %d times", what, restarts)
		}
	}
	others(imports, "")
	apply(t, n, engine(t, "[runtime]\nset_as_default = true\n"))
	others("version = 3\n", "version = 3\n"+imports)
	again := engine(t, "[runtime]\nhandler = \"gpu\"\n")
	once("a changed spec", plan(t, n, again).Changes)
	apply(t, n, again)
	p := must.Get(again.PlanUndo(context.Background(), n.View(), "all", nil))(t)
	once("undo", p.Changes)
	undo(t, n, again, "all")
}
