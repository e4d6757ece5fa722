// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"

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
	because, try := details(err)
	return &trouble.Error{
		What:    "cannot show the cluster the state of this node: " + err.Error(),
		Because: append([]string{"labels, taints and the condition of the node wait for that, and nothing else of this machine does"}, because...),
		Try:     append(slices.Clone(try), "then run the same command again: it goes on from here"),
		Err:     errors.Join(trouble.Wait{For: "a right in the cluster"}, err),
	}
}

// details is what an error says beside its first line.
func details(err error) (because, try []string) {
	if e := (*trouble.Error)(nil); errors.As(err, &e) {
		return e.Because, e.Try
	}
	return nil, nil
}
