// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// Cloud is the machine's cloud and the tool that set it up as a node, as far as its files show.
type Cloud struct {
	Name string `json:"name,omitempty"` // aws, gce, azure; "" for none that is known
	Why  string `json:"why,omitempty"`  // the sign seen
	// Managed names the scripts that make the machine a node: eks (nodeadm), eks-hybrid, eks-al2
	// (bootstrap.sh: refused), gke, aks, aks-flex; "" for none.
	Managed    string `json:"managed,omitempty"`
	ManagedWhy string `json:"managedWhy,omitempty"` // the sign seen
	ECRPlugin  bool   `json:"ecrPlugin,omitempty"`  // kubelet's plugin that logs in to ECR is installed
	InstanceID string `json:"instanceID,omitempty"` // if the firmware has it
	Type       string `json:"type,omitempty"`       // of the instance, if the firmware has it: g5.xlarge
}

// Detect determines, from the firmware and from files, the machine's cloud and the scripts that
// make it a node. It reads a dozen small files and never uses the network. In a root folder only
// files count: an image has no firmware.
func Detect(v host.View) Cloud {
	var c Cloud
	if v.Live() {
		c.Name, c.Why = firmware(v)
	}
	if c.Name == "aws" {
		c.InstanceID, c.Type = nitroNames(v)
	}
	c.ECRPlugin = exists(v, ECRPlugin)

	managed, why := platform.Detect(v)
	c.Managed = managed.Name
	c.ManagedWhy = why
	if c.Name == "" && managed.Cloud != "" {
		c.Name = managed.Cloud
		c.Why = why
	}
	return c
}

// nitroNames returns the instance's id and its type. Only Nitro's firmware has them: Xen's shows
// "HVM domU" as the product.
func nitroNames(v host.View) (id, instanceType string) {
	tag := attr(v, "/sys/class/dmi/id/board_asset_tag")
	if ec2ID().MatchString(tag) {
		id = tag
	}

	product := attr(v, "/sys/class/dmi/id/product_name") // g5.xlarge, p4d.24xlarge
	family, size, hasDot := strings.Cut(product, ".")
	if hasDot && plain(family) && plain(size) && product == strings.ToLower(product) {
		instanceType = product
	}
	return id, instanceType
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
		text := attr(v, sign.file)
		if sign.is(text) {
			return sign.cloud, sign.file + " says " + text
		}
	}

	uuid := attr(v, "/sys/class/dmi/id/product_uuid")
	vendor := attr(v, "/sys/class/dmi/id/sys_vendor")
	if xenUUID(uuid) && vendor == "Xen" {
		return "aws", "/sys/class/dmi/id/product_uuid begins with ec2, and sys_vendor says Xen"
	}
	return "", ""
}

func exactly(s string) func(string) bool {
	return func(text string) bool { return text == s }
}

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
	if len(s) != 36 {
		return false
	}
	swapped := s[4:8] == "2aec"
	return swapped || strings.HasPrefix(s, "ec2")
}

func ec2ID() *regexp.Regexp {
	return regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)
}

// exists says whether a file exists. If it cannot be read, the answer is no.
func exists(v host.View, name string) bool {
	_, err := v.Stat(name)
	return err == nil
}

// attr returns the line in a file of /sys, "" if it cannot be read.
func attr(v host.View, name string) string {
	line, err := v.ReadFile(name)
	if err != nil {
		return ""
	}
	return clean(string(line), 256)
}
