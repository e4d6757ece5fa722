// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// virt names the hypervisor or container around the running machine as systemd-detect-virt prints it.
//
// That program asks the CPU first, which a pure reader cannot; firmware strings, the clock sources and /sys/hypervisor
// tell the same ones apart. Source: systemd's src/basic/virt.c.
func (l *look) virt() string {
	if c := l.container(); c != "" {
		return c
	}
	product := l.attr("/sys/class/dmi/id/product_name")
	vendor := l.attr("/sys/class/dmi/id/sys_vendor")
	vm := dmiVirt(product, vendor,
		l.attr("/sys/class/dmi/id/bios_vendor"),
		l.attr("/sys/class/dmi/id/product_version"))
	switch {
	case vm == "amazon" || vm == "google":
		// Their bare-metal machines carry the same names.
		if bit, ok := l.smbios(); ok && !bit {
			return ""
		}
		if strings.HasSuffix(product, ".metal") || strings.Contains(product, ".metal-") {
			return ""
		}
		return vm
	case vm == "" && vendor == "Microsoft Corporation" && product == "Virtual Machine":
		return "microsoft"
	case vm != "" && vm != "qemu":
		return vm
	}
	// QEMU's strings do not say who runs the CPU: with KVM, guests have its clock.
	clocks := strings.Fields(l.attr("/sys/devices/system/clocksource/clocksource0/available_clocksource"))
	for _, c := range clocks {
		switch {
		case c == "kvm-clock":
			return "kvm"
		case strings.HasPrefix(c, "hyperv_clocksource"):
			return "microsoft"
		}
	}
	if vm == "" && l.attr("/sys/hypervisor/type") == "xen" &&
		!strings.Contains(l.attr("/proc/xen/capabilities"), "control_d") { // dom0 is the metal's own
		return "xen"
	}
	if bit, _ := l.smbios(); vm == "" && bit {
		return "vm-other"
	}
	return vm
}

// smbios says whether the firmware's BIOS information sets its bit for virtual machines (SMBIOS 7.1.2.2); only root can
// tell.
func (l *look) smbios() (vm, known bool) {
	b, err := l.v.ReadFile("/sys/firmware/dmi/entries/0-0/raw")
	if err != nil || len(b) < 20 || b[1] < 20 {
		return false, false
	}
	return b[19]&(1<<4) != 0, true
}

func (l *look) container() string {
	if c := l.attr("/run/systemd/container"); c != "" {
		return c
	}
	for _, kv := range strings.Split(l.attr("/proc/1/environ"), "\x00") {
		if c, ok := strings.CutPrefix(kv, "container="); ok && c != "" {
			return c
		}
	}
	return ""
}

// dmiVirt recognises a hypervisor by how the firmware's strings begin.
func dmiVirt(texts ...string) string {
	for _, s := range texts {
		for _, known := range [...][2]string{
			{"KVM", "kvm"},
			{"OpenStack", "kvm"},
			{"KubeVirt", "kvm"},
			{"Amazon EC2", "amazon"},
			{"QEMU", "qemu"},
			{"VMware", "vmware"},
			{"VMW", "vmware"},
			{"innotek GmbH", "oracle"},
			{"VirtualBox", "oracle"},
			{"Xen", "xen"},
			{"Bochs", "bochs"},
			{"Parallels", "parallels"},
			{"BHYVE", "bhyve"},
			{"Hyper-V", "microsoft"},
			{"Apple Virtualization", "apple"},
			{"Google Compute Engine", "google"},
		} {
			if strings.HasPrefix(s, known[0]) {
				return known[1]
			}
		}
	}
	return ""
}

// asked is what a cloud answered in this run, or why it did not. Neither is asked again before each stage: what they say
// holds for the machine's life, and who does not answer within half a minute would cost each stage as much.
type asked struct {
	instance   *instance.Instance
	noInstance *trouble.Error
	cluster    *instance.Cluster
	noCluster  *trouble.Error
	ref        instance.ClusterRef // the cluster that was asked about
}

// askCloud asks the cloud, once a run, what it was asked for.
func (c *Cache) askCloud(ctx context.Context, l *look, f *Facts, needs Needs) {
	if ref := needs.Cluster; ref != nil && (f.Cloud.Name != "aws" || f.Cloud.Managed != "") {
		needs.Cluster = nil // in no cluster of EKS, or its own scripts know which one
	} else if ref != nil && f.Live {
		if f.Instance, f.Cluster = instance.Kept(l.v, f.Cloud, *ref); f.Cluster != nil {
			return
		}
	}
	if needs.Cluster == nil || !f.Live {
		return
	}
	a := &c.asked
	if a.instance == nil && a.noInstance == nil {
		var err error
		a.instance, err = instance.Ask(ctx, l.v, f.Cloud)
		a.noInstance = l.unanswered("ask", "EC2's metadata service", err)
	}
	f.Instance, f.NoInstance = a.instance, a.noInstance
	if f.Instance == nil {
		return
	}
	if same := a.ref.Name == needs.Cluster.Name && a.ref.Region == needs.Cluster.Region; !same || (a.cluster == nil && a.noCluster == nil) {
		cluster, err := instance.AskCluster(ctx, l.v, f.Instance, *needs.Cluster)
		a.ref, a.cluster, a.noCluster = *needs.Cluster, cluster, l.unanswered("ask for", "the cluster", err)
	}
	f.Cluster, f.NoCluster = a.cluster, a.noCluster
}

// unanswered separates a cloud that does not answer, which is a fact, from an error on this machine.
func (l *look) unanswered(verb, object string, err error) *trouble.Error {
	refused, later := (*trouble.Error)(nil), host.Later{}
	switch {
	case err == nil || errors.As(err, &later):
	case errors.As(err, &refused):
		return refused
	default:
		l.fail(verb, object, err)
	}
	return nil
}
