// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Texts of the table name NODE, and a GPU as -i GPU: those of the machine take their place.
var (
	nodeWord  = pattern.Of(`\bNODE\b`)
	ofCluster = pattern.Of(` \(kubectl [^)]*\bNODE\b[^)]*\)`)
	address   = pattern.Of(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// fillIn names the machine's Node and the GPUs of each cause in its fix and commands. A machine that
// has not joined a cluster has no Node to drain by kubectl.
func (m *Machine) fillIn(causes []Cause) {
	kubelet := m.Facts().Kubelet
	hostname, _ := m.text("/proc/sys/kernel/hostname")
	node := cmp.Or(kubelet.NodeName, strings.ToLower(hostname))
	if kubelet.Joined {
		registered, _ := m.Registration()
		node = cmp.Or(registered.name, node)
	}

	for i := range causes {
		cause := &causes[i]
		if !kubelet.Joined {
			cause.Fix = ofCluster().ReplaceAllString(cause.Fix, "")
		}
		cause.Fix = nodeWord().ReplaceAllString(cause.Fix, node)
		if gpus := cause.gpus(); len(gpus) > 0 {
			cause.Fix = strings.ReplaceAll(cause.Fix, "-i GPU", "-i "+strings.Join(gpus, ","))
		}
		for j := range cause.Commands {
			cause.Commands[j] = nodeWord().ReplaceAllString(cause.Commands[j], node)
		}
	}
}

// gpus are the addresses of the GPUs that the cause is about.
func (c Cause) gpus() (addresses []string) {
	for _, found := range c.Found {
		if address().MatchString(found.Object) {
			addresses = append(addresses, found.Object)
		}
	}
	return addresses
}
