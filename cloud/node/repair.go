// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// waitForRepair waits while a component that monitors the hardware reports a fault: gpuadm lets no
// pods onto a node that is about to be repaired. gpuadm changes none of these conditions.
func waitForRepair(n *kube.Node) error {
	for _, c := range n.Status.Conditions {
		monitor, repair := repairOf(c)
		if monitor == "" {
			continue
		}
		return trouble.Wait{
			For: fmt.Sprintf("%s reports %s=%s (%s)", monitor, c.Type, c.Status, trouble.OneLine(c.Reason)),
			Try: []string{
				repair,
				"kubectl describe node " + n.Name + " has the message; gpuadm does not change this condition",
			},
			Err: underRepair,
		}
	}
	return nil
}

// repairOf names the component whose condition reports faulty hardware, and how the node is
// repaired; "" if the condition reports none.
func repairOf(c kube.Condition) (monitor, repair string) {
	byPlatform := platform.MonitorOf(c.Type)
	switch {
	case byPlatform.Who != "" && c.Status == kube.False:
		return byPlatform.Who, byPlatform.Repair
	case isNVSentinel(c.Type) && c.Status == kube.True:
		return "NVSentinel", "NVSentinel cordons the node, drains it and has it repaired, as its rules say"
	}

	return "", ""
}

// isNVSentinel reports whether a type of conditions is one of NVSentinel's: GpuPowerWatch,
// SysLogsXIDError. Sources: NVIDIA/NVSentinel, docs/INTEGRATIONS.md, and
// https://docs.nvidia.com/nvsentinel/components/fault-quarantine.
func isNVSentinel(kind string) bool {
	switch {
	case kind == "NVSwitchFatalError", kind == "NVSwitchDown":
		return true
	case strings.HasPrefix(kind, "SysLogs"):
		return true
	}
	return strings.HasPrefix(kind, "Gpu") && strings.HasSuffix(kind, "Watch")
}
