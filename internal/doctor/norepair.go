// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// noRepair says of each fault without a repair why gpuadm has none. What to type instead is in the check and its findings.
func noRepair() map[string]string {
	const (
		board    = "the board, its slot or its power is at fault, which no program can fix"
		drain    = "it ends all programs on the GPU: an operator decides when, and drains the node first"
		reboot   = "it needs a reboot: an operator decides when, and drains the node first"
		choice   = "more than one state is right, and only an operator knows the wanted one"
		foreign  = "another program or an operator made the file, and gpuadm removes nothing that it did not make"
		settings = "it is a setting of the machine's firmware, which the running system cannot change"
		space    = "only an operator knows which files can be removed"
		cluster  = "it is a change in the cluster, and a kubelet's identity may not make it"
		network  = "its cause is on the network or at a time server, outside this machine"
	)
	apply := "it needs packages of the version and kind that node.toml chooses: with [driver] there, " + trouble.Command("apply") + " is the fix"
	why := map[string]string{}
	for codes, text := range map[string]string{
		"DRV-001 DRV-002 DRV-003 DRV-008 DRV-009 DRV-011 DRV-013 DRV-018 FAB-001 FAB-004 PKG-003": apply,
		"GPU-004 GPU-007 GPU-008 GPU-009":                                 board,
		"GPU-003 GPU-005 GPU-006 FAB-003 MIG-002 GPU-011":                 drain,
		"DRV-015 DRV-017 GPU-001 GPU-002 SYS-006":                         reboot,
		"KUB-002 KUB-003 MIG-001 RUN-003 RUN-006 RUN-009 SYS-003 SYS-005": choice,
		"MIG-003":         "apply is the fix: it makes what [mig] in node.toml asks for",
		"CDI-002 CDI-003": foreign,
		"RUN-007 RUN-008": "an operator or another program chose this setting, and may have had a reason",
		"DRV-016":         settings,
		"SYS-001 SYS-002": space,
		"KUB-004 KUB-009 KUB-010 KUB-011 KUB-013": cluster,
		"SYS-004":                 network,
		"DRV-004 DRV-010 DRV-012": "gpuadm could not undo the one command that fixes it",
		"DRV-007":                 "only a person at the machine's console can enrol a key or switch Secure Boot off",
		"KUB-005":                 "kubelet needs new credentials, which only the cluster's administrator can make",
		"KUB-006":                 "what is in swap needs room in memory, and an operator knows whether there is enough",
		"KUB-012":                 "pods with CPUs of their own may lose them: an operator decides when, and drains the node first",
		"KUB-014":                 "a start would end as the others did, and only kubelet's log says why",
		"RUN-010":                 "a start would end as the others did, and only the engine's log says why",
		"KUB-008":                 "the Node may have been deleted on purpose, before the machine is taken out of service",
		"RUN-004":                 "the program comes with NVIDIA's Container Toolkit: with [toolkit] in node.toml, " + trouble.Command("apply") + " is the fix",
	} {
		for code := range strings.FieldsSeq(codes) {
			why[code] = text
		}
	}
	return why
}
