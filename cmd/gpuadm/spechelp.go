// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// specTopic is `gpuadm help spec`. Its text is put together when it is asked for.
func specTopic() *cobra.Command {
	topic := &cobra.Command{Use: "spec", Short: "what node.toml may say (gpuadm help spec)"}
	topic.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Long = specHelp()
		c.Parent().HelpFunc()(c, args)
	})
	return topic
}

// specHelp lists every key of node.toml, from the table that also checks it.
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
	b.WriteString(besides)
	return b.String()
}

// besides is what gpuadm does not install. Sources: drivers/besides.go; GDRCopy's packages:
// https://developer.download.nvidia.com/compute/redist/gdrcopy and https://github.com/NVIDIA/gdrcopy README.md.
const besides = `
For network cards and storage that reach the GPUs' memory by themselves:
  peermem  nvidia-peermem is built against DOCA or OFED only if that is installed before the
           driver. NVIDIA recommends dma-buf instead, which needs neither.
  gds      NVMe, NVMe over Fabrics and NFS over RDMA need DOCA or OFED installed before nvidia-fs.
  GDRCopy  gpuadm does not install it: its packages (gdrdrv-dkms, gdrcopy-kmod) are files on
           NVIDIA's download site, not in the driver's repository. Install them after the driver.
`
