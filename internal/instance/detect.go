// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// ECRPlugin is the path, in EKS's images, of kubelet's plugin that logs in to ECR, the registry of
// AWS.
const ECRPlugin = "/etc/eks/image-credential-provider/ecr-credential-provider"

// Detect determines, from the firmware and from files, the machine's cloud and the scripts that
// make it a node. It reads a dozen small files and never uses the network. In a root folder only
// files count: an image has no firmware.
func Detect(v host.View) Cloud {
	var c Cloud
	if v.Live() {
		c.Name, c.Why = firmware(v)
	}
	if c.Name == "aws" {
		if id := attr(v, "/sys/class/dmi/id/board_asset_tag"); ec2ID().MatchString(id) { // Nitro's alone, as is the type; Xen shows "HVM domU"
			c.InstanceID = id
		}
		name := attr(v, "/sys/class/dmi/id/product_name")
		if family, size, ok := strings.Cut(name, "."); ok && plain(family) && plain(size) && name == strings.ToLower(name) {
			c.Type = name // g5.xlarge, p4d.24xlarge
		}
	}
	c.Nodeadm, c.ECRPlugin = has(v, "/usr/bin/nodeadm"), has(v, ECRPlugin)
	by, why := platform.Detect(v)
	c.Managed, c.ManagedWhy = by.Name, why
	if c.Name == "" && by.Cloud != "" {
		c.Name, c.Why = by.Cloud, why
	}
	return c
}

// firmware names the cloud by the DMI strings of its hypervisor.
func firmware(v host.View) (cloud, why string) {
	for _, sign := range [...]struct {
		cloud, file string
		is          func(string) bool
	}{
		// Nitro and bare metal have the full name. Xen machines, such as p3, show it in a version
		// or in the first letters of an identity.
		// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
		{"aws", "/sys/class/dmi/id/sys_vendor", exactly("Amazon EC2")},
		{"aws", "/sys/class/dmi/id/bios_vendor", exactly("Amazon EC2")},
		{"aws", "/sys/class/dmi/id/bios_version", ending(".amazon")},
		{"aws", "/sys/hypervisor/uuid", beginning("ec2")},
		// Source: https://cloud.google.com/compute/docs/instances/detect-compute-engine
		{"gce", "/sys/class/dmi/id/product_name", exactly("Google Compute Engine")},
		{"gce", "/sys/class/dmi/id/product_name", exactly("Google")},
		// Hyper-V has Microsoft's name everywhere; the tag is Azure's alone.
		// Source: cloud-init's tools/ds-identify.
		{"azure", "/sys/class/dmi/id/chassis_asset_tag", exactly("7783-7084-3265-9085-8269-3286-77")},
		{"oci", "/sys/class/dmi/id/chassis_asset_tag", exactly("OracleCloud.com")},
	} {
		if text := attr(v, sign.file); sign.is(text) {
			return sign.cloud, sign.file + " says " + text
		}
	}
	if uuid := attr(v, "/sys/class/dmi/id/product_uuid"); xenUUID(uuid) && attr(v, "/sys/class/dmi/id/sys_vendor") == "Xen" {
		return "aws", "/sys/class/dmi/id/product_uuid begins with ec2, and sys_vendor says Xen"
	}
	return "", ""
}

func exactly(s string) func(string) bool { return func(text string) bool { return text == s } }
func ending(s string) func(string) bool {
	return func(text string) bool { return strings.HasSuffix(text, s) }
}

func beginning(s string) func(string) bool {
	return func(text string) bool { return strings.HasPrefix(text, s) }
}

// xenUUID says whether an identity looks like one of EC2's Xen: it begins with ec2, or with the
// bytes swapped as in 45e12aec. One in four thousand other identities does, too: hence the second
// sign.
func xenUUID(text string) bool {
	s := strings.ToLower(text)
	return len(s) == 36 && (strings.HasPrefix(s, "ec2") || s[4:6] == "2a" && s[6:8] == "ec")
}

func ec2ID() *regexp.Regexp { return regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`) }

// has says whether name exists. If it cannot be read, the answer is no.
func has(v host.View, name string) bool {
	_, err := v.Stat(name)
	return err == nil
}

// attr returns the line in a file of /sys, "" if it cannot be read.
func attr(v host.View, name string) string {
	b, err := v.ReadFile(name)
	if err != nil {
		return ""
	}
	return clean(string(b), 256)
}
