// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

// About is what a section of node.toml is for, in one line; "" for the top of the file.
func About(section string) string {
	return map[string]string{
		"driver":             "the NVIDIA driver: its version, its source, its kernel modules and daemons",
		"driver.repo":        "the repository of the driver's packages, in place of NVIDIA's",
		"driver.runfile":     "NVIDIA's installer, for source = \"runfile\"",
		"toolkit":            "the NVIDIA Container Toolkit and its configuration",
		"toolkit.repo":       "the repository of the toolkit's packages, in place of NVIDIA's",
		"runtime":            "how the container engine runs containers with GPUs",
		"mig":                "MIG partitions",
		"mig.gpu":            "the partitions of some GPUs",
		"mig.gpu.placements": "a partition at a given place",
		"sharing":            "how containers share a GPU, for the device plugin",
		"node":               "what the node tells Kubernetes about itself",
		"join":               "how the node joins its cluster; without this section another program does that",
		"proxy":              "proxies, and further CA certificates",
		"disruption":         "what gpuadm may do while pods use the GPUs",
	}[section]
}
