// SPDX-License-Identifier: Apache-2.0

package facts

// Owner is another owner of a part of the node.
type Owner struct {
	// Name is GPUOperator, a platform's, OSTree or OtherOwner; of partitions NVIDIA's MIG manager,
	// a cloud or a unit.
	Name string `json:"name"`
	Why  string `json:"why"`            // by which sign
	Ends string `json:"ends,omitempty"` // what makes an owner of the partitions leave them
}

func (o Owner) String() string { return o.Name + " (" + o.Why + ")" }
