// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/joins"
)

func testThing(ref converge.Ref) (converge.Thing, error) {
	switch ref.Kind {
	case "file":
		if ref.Form == node.FormLogin {
			return node.NewLogin(ref.Name), nil
		}
		return things.NewFile(ref.Name, nil), nil
	case "registered":
		return node.NewRegistered(ref.Name), nil
	case "joined":
		return node.NewJoined(ref.Name), nil
	}
	return joins.Thing(ref)
}
