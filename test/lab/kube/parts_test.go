// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestModule wants all of Kubernetes' modules at one version: go get moves some of them alone.
func TestModule(t *testing.T) {
	version, found, err := places()
	must.OK(t, err)
	text := must.Get(os.ReadFile(filepath.Join(moduleDir(), "go.mod")))(t)
	staging := strings.Replace(version, "v1.", "v0.", 1)
	lines := regexp.MustCompile(`(?m)^\tk8s.io/\S+ => \S+ (\S+)$`).FindAllStringSubmatch(string(text), -1)
	if len(lines) < 20 {
		t.Errorf("only %d modules are replaced", len(lines))
	}
	for _, line := range lines {
		if line[1] != staging {
			t.Errorf("not %s: %s", staging, line[0])
		}
	}
	for _, p := range programs() {
		if !strings.HasPrefix(filepath.Base(found[p.name]), p.name+"-") {
			t.Errorf("%s lies at %q", p.name, found[p.name])
		}
	}
}

// TestFindMissing wants to hear what is missing, and how to get it.
func TestFindMissing(t *testing.T) {
	t.Setenv("GPUADM_TEST_KUBE", t.TempDir())
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), BuildCommand) {
		t.Errorf("%v", err)
	}
}

func TestDocuments(t *testing.T) {
	got, err := Documents([]byte("# a comment\n---\nkind: A\nmetadata: {name: a}\n---\nkind: B\nlist: [x]\n"))
	want := []Object{{"kind": "A", "metadata": Object{"name": "a"}}, {"kind": "B", "list": []any{"x"}}}
	if err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v: %s", err, cmp.Diff(want, got))
	}
	if _, err := Documents([]byte("a: [\n")); err == nil {
		t.Error("a broken file is read")
	}
}

func TestTaints(t *testing.T) {
	node := Object{"spec": Object{"taints": []any{Object{"key": "a", "value": "b", "effect": "NoSchedule"}, Object{"key": "c", "effect": "NoExecute"}}}}
	if diff := cmp.Diff([]string{"a=b:NoSchedule", "c:NoExecute"}, Taints(node)); diff != "" {
		t.Error(diff)
	}
	if got := Taints(nil); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}
