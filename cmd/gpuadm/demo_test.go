// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// demoNode is the simulated machine: Ubuntu 24.04 with 8 × H100, a kubeadm containerd and no driver.
//
//go:embed demo.txtar
var demoNode []byte

var demo = flag.Bool("demo", false, "print the demo to the terminal")

// TestDemo is `make demo`: a simulated node goes through plan, apply, apply, undo in the real
// engine.
func TestDemo(t *testing.T) {
	var out strings.Builder
	w := io.Writer(&out)
	if *demo {
		w = os.Stdout
	}
	n := must.Get(simhost.New(demoNode))(t)
	ubuntu.Install(n)
	e := envOn(n, w)
	fmt.Fprintf(w, "\nnode# cat /etc/gpuadm/node.toml\n%s", must.Get(n.ReadFile("/etc/gpuadm/node.toml"))(t))
	lines := []string{
		"plan", "plan runtime", "apply", "apply", "status",
		"undo --yes", "status",
	}
	for _, line := range lines {
		fmt.Fprintf(w, "\nnode# gpuadm %s\n", line)
		code := run(context.Background(), e, strings.Fields(line))
		must.That(t, code == 0 || code == exitPending, "exit code %d", code)
	}

	if !*demo {
		compareGolden(t, filepath.Join("testdata", "demo.txt"), seconds.ReplaceAllString(out.String(), "in 0.0 s"))
	}
}
