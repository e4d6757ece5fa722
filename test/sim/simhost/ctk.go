// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// generatesCDI says whether a command is the toolkit's that writes a CDI spec, and to which file.
func (n *Node) generatesCDI(argv []string) (output string, is bool) {
	if path.Base(argv[0]) != "nvidia-ctk" || len(argv) != 4 || argv[1] != "cdi" || argv[2] != "generate" {
		return "", false
	}
	if _, err := n.raw.Stat("/usr/bin/nvidia-ctk"); err != nil {
		return "", false
	}
	return strings.CutPrefix(argv[3], "--output=")
}

// generateCDI does what nvidia-ctk cdi generate does: a device for each GPU or partition, by its
// number, since a simulated machine has no device nodes that UUIDs would lead to. Source:
// NVIDIA/nvidia-container-toolkit, pkg/nvcdi/lib-nvml.go.
func (n *Node) generateCDI(output string) error {
	if _, err := n.answers(); err != nil {
		return err
	}

	var s strings.Builder
	s.WriteString("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
	count := 0
	for _, one := range n.driver.gpus {
		g := shown(*one)
		has := 1
		switch {
		case g.Lost != "":
			has = 0
		case g.Mode:
			has = 0
			for _, in := range g.Instances {
				has += len(in.Compute)
			}
		}
		for range has {
			fmt.Fprintf(&s, "- {name: %q, containerEdits: {env: [NVIDIA_VISIBLE_DEVICES=void]}}\n", fmt.Sprint(count))
			count++
		}
	}

	for i, c := range output {
		if c != '/' || i == 0 {
			continue
		}
		err := n.raw.Mkdir(output[:i], host.Attr{Mode: 0o755})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return n.raw.WriteFile(output, []byte(s.String()), host.Attr{Mode: 0o644})
}
