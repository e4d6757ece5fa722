// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// lacking makes something to wait for of a right that the cluster does not give us, or of credentials that it does not know: only
// its administrator can. What is said to the cluster waits for it, and gpuadm fixes the machine all the same. Kubelet is held back
// by stages that ask the cluster nothing.
func lacking(err error) error {
	if !errors.Is(err, kube.Forbidden) && !errors.Is(err, kube.Unauthorized) {
		return err
	}
	e := KubeError(err)
	return &trouble.Error{
		What:    "cannot show the cluster the state of this node: " + e.Error(),
		Because: append([]string{"labels, taints and the condition of the node wait for that, and nothing else of this machine does"}, e.Because...),
		Try:     append(append([]string{}, e.Try...), "then run the same command again: it goes on from here"),
		Err:     errors.Join(trouble.Wait{For: "a right in the cluster"}, err),
	}
}

func KubeError(err error) *kube.Error {
	e := (*kube.Error)(nil)
	if !errors.As(err, &e) {
		return nil
	}
	return e
}
