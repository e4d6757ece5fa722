// SPDX-License-Identifier: Apache-2.0

// Package joins is what the tests of all ways to join share: a machine, a spec, and what an error
// says.
package joins

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Machine has containerd and kubelet's binary, and no unit for it.
//
//go:embed machine.txtar
var Machine string

// Because is what an error says of its cause, and of what to do.
func Because(err error) string {
	t := (*trouble.Error)(nil)
	if !errors.As(err, &t) {
		return ""
	}
	return "because " + strings.Join(t.Because, "\n") + "\ntry " + strings.Join(t.Try, "\n")
}

// Names lists changes, a line each.
func Names[T fmt.Stringer](changes []T) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// Mkdirs makes a folder and those above it.
func Mkdirs(n *simhost.Node, name string) error {
	if _, err := n.Stat(name); err == nil {
		return nil
	}
	if err := Mkdirs(n, path.Dir(name)); err != nil {
		return err
	}
	return n.Mkdir(name, host.Attr{Mode: 0o755})
}

// Thing builds a thing again, of the kinds that every join makes.
func Thing(ref converge.Ref) (converge.Thing, error) {
	switch ref.Kind {
	case "file":
		return things.NewFile(ref.Name, nil), nil
	case "folder":
		return things.NewFolder(ref.Name), nil
	case "unit":
		return things.NewUnit(ref.Name), nil
	case "unit-files":
		return things.NewUnitFiles(ref.Name), nil
	case "restart":
		return kubelet.NewRestart(ref.Name, ref.Reads), nil
	}
	return nil, fmt.Errorf("no kind %s", ref.Kind)
}

// Recorded is a machine of test/hosts, with files beside its own.
func Recorded(t *testing.T, name string, files map[string]string) *simhost.Node {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), "test", "hosts", name+".txtar"))
	must.OK(t, err)
	n, err := simhost.New(data)
	must.OK(t, err)
	// What the recording left out, and a join reads.
	for name, text := range map[string]string{kubelet.Kubeconfig: "kind: Config\n"} {
		if i, err := n.Stat(name); err == nil && i.Size > 0 {
			must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
		}
	}

	for name, text := range files {
		var folders []string
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			folders = append(folders, dir)
		}
		for _, dir := range slices.Backward(folders) {
			if _, err := n.Stat(dir); err != nil {
				must.OK(t, n.Mkdir(dir, host.Attr{Mode: 0o755}))
			}
		}

		must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
	}

	return n
}

// root is the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	must.OK(t, err)
	for dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}

	t.Fatal("no go.mod above")
	return ""
}

// Resolved is what nodeadm-config notes of Karpenter's user data.
const Resolved = `{"spec":{"cluster":{"name":"gpus"},"containerd":{"config":""},"kubelet":{"config":{"maxPods":250,
 "registerWithTaints":[{"key":"karpenter.sh/unregistered","effect":"NoExecute"}]},"flags":["--node-labels=karpenter.sh/nodepool=gpu"]}},"status":{}}`
