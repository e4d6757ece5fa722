// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestNoRestartForWhatWasNotWritten: where a full disk keeps a file from being written, the daemon that reads it is not restarted.
func TestNoRestartForWhatWasNotWritten(t *testing.T) {
	tested := 0
	for _, m := range machines(t) {
		e := engine(t, specs["default"])
		if len(plan(t, m.boot(t), e).Cannot()) > 0 {
			continue
		}
		for at := range 40 {
			n := m.boot(t)
			n.Fail(at, syscall.ENOSPC)
			_, err := engine(t, specs["default"]).Apply(t.Context(), n)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot make file ") {
				continue
			}
			why := strings.Join(rolledBack(err), ", ")
			if strings.Contains(why, "file ") {
				continue // it was written, and only its folder could not be synced
			}
			tested++
			check.That(t, !strings.Contains(why, "restart "), "%s, touch %d: %v: undone %s", m.name, at, err, why)
		}
	}
	check.That(t, tested >= 10, "only %d failed writes", tested)
}

// TestNoRestartForAFolder: a folder that the daemon reads is made, and the disk is full before a file is in it. The daemon is not restarted
// because the folder came and went, and the next apply restarts it once.
func TestNoRestartForAFolder(t *testing.T) {
	m := recordedAs(t, "a100-mixed-t4")
	tested := 0
	for at := range 40 {
		n := m.boot(t)
		must.OK(t, errors.Join(n.Remove("/srv/containerd/d/10-runc.toml"), n.Remove("/srv/containerd/d")))
		n.Reboot()
		n.Fail(n.Touches()+at, syscall.ENOSPC)
		_, err := engine(t, specs["default"]).Apply(t.Context(), n)
		why := strings.Join(rolledBack(err), ", ")
		if err == nil || strings.Contains(why, "file ") {
			continue // it was written, and only its folder could not be synced
		}
		check.That(t, !strings.Contains(why, "restart "), "touch %d: %v: undone %s", at, err, why)
		if !strings.Contains(why, "folder ") {
			continue
		}
		tested++
		n.Reboot() // nothing fails any more
		made := apply(t, n, engine(t, specs["default"])).Made
		got := names(made)
		check.That(t, strings.Count(got, "restart ") == 1, "touch %d: then made %s", at, got)
	}
	check.That(t, tested >= 5, "only %d folders came and went", tested)
}

func rolledBack(err error) []string {
	var t *trouble.Error
	if errors.As(err, &t) {
		return t.Undone
	}
	return nil
}

// TestRestartOnce: a daemon is one line of a plan, and is restarted once, where its configuration imports more than when gpuadm first
// edited it: then what it reads is another list of files, and gpuadm's part lies in another file.
func TestRestartOnce(t *testing.T) {
	const config, imports = "/srv/containerd/config.toml", "imports = [\"/srv/containerd/d/*.toml\"]\n"
	n := recordedAs(t, "a100-mixed-t4").boot(t)
	others := func(old, new string) {
		t.Helper()
		found, err := n.ReadFile(config)
		must.That(t, err == nil && bytes.Contains(found, []byte(old)), "%v\n%s", err, found)
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
		check.That(t, restarts == 1, "%s: containerd is to be restarted %d times", what, restarts)
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
