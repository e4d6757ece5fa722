// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// FormLogin is the form of such a kubeconfig, for the journal.
const FormLogin = "login"

// login is the kubeconfig of a kubelet that has no certificate but calls a program for tokens. Its
// removal takes the node out of the cluster, as the removal of a certificate does elsewhere.
type login struct{ *things.FileThing }

// Login makes a file such a kubeconfig.
func Login(file *things.FileThing) converge.Thing { return login{file.Formed(FormLogin)} }

// NewLogin builds the thing again, for undo.
func NewLogin(name string) converge.Thing { return Login(things.NewFile(name, nil)) }

// Breaks refuses to remove kubelet's credentials while pods run here.
func (l login) Breaks(
	ctx context.Context, v host.View, before, after converge.State,
) (breaks []string, clients map[string][]string, err error) {
	removes := before != "" && after == ""
	if !removes {
		return nil, nil, nil
	}

	text, err := l.Bytes(v, before)
	if err != nil || !callsProgram(text) {
		return nil, nil, err
	}
	return nil, nil, RefuseWhilePodsRun(ctx, v)
}

// callsProgram says whether a kubeconfig gets its tokens from a program.
func callsProgram(kubeconfig []byte) bool {
	return bytes.Contains(kubeconfig, []byte(" exec:\n"))
}
