// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import "testing"

// TestInterfaces: the figures of some types are those of https://github.com/awslabs/amazon-eks-ami, eni_max_pods_test.go and the old
// eni-max-pods.txt: interfaces × (addresses − 1) + 2.
func TestInterfaces(t *testing.T) {
	for name, pods := range map[string]int{
		"p5.48xlarge": 100, "p5en.48xlarge": 198, "p4d.24xlarge": 737, "p3dn.24xlarge": 737, "p6-b200.48xlarge": 198,
		"g4dn.xlarge": 29, "g4dn.12xlarge": 234, "g5.xlarge": 58, "g5.48xlarge": 345, "g6.48xlarge": 737, "g6e.12xlarge": 292,
	} {
		if enis, addresses := interfacesOf(name); enis*(addresses-1)+2 != pods {
			t.Errorf("%s: %d × %d, want %d pods", name, enis, addresses, pods)
		}
	}
	if enis, _ := interfacesOf("p9.48xlarge"); enis != 0 {
		t.Error("an unknown type is known")
	}
}
