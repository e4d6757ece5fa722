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

// driverLibraries is the folder of the driver's libraries on Debian and Ubuntu.
const driverLibraries = "/usr/lib/x86_64-linux-gnu"

// generateCDI does what nvidia-ctk cdi generate does: a device for each GPU or partition, by its
// number, since a simulated machine has no device nodes that UUIDs would lead to, and the libraries
// whose names end with the driver's version. Source: NVIDIA/nvidia-container-toolkit,
// pkg/nvcdi/lib-nvml.go and pkg/nvcdi/driver-nvml.go.
func (n *Node) generateCDI(output string) error {
	version, err := n.answers()
	if err != nil {
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

	s.WriteString("containerEdits:\n  env: [NVIDIA_VISIBLE_DEVICES=void]\n  mounts:\n")
	names, err := n.raw.ReadDir(driverLibraries)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".so."+version) {
			library := path.Join(driverLibraries, name)
			fmt.Fprintf(&s, "  - {hostPath: %[1]s, containerPath: %[1]s}\n", library)
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
