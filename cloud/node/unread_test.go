// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// unreadable is a machine with a file or a folder that cannot be looked at.
type unreadable struct {
	host.Host
	name string
}

func (u unreadable) Stat(name string) (host.Info, error) {
	if name == u.name {
		return host.Info{}, u.failed("look at")
	}
	return u.Host.Stat(name)
}

func (u unreadable) ReadDir(name string) ([]string, error) {
	if name == u.name {
		return nil, u.failed("read")
	}
	return u.Host.ReadDir(name)
}

func (u unreadable) failed(verb string) error {
	return &host.FileError{
		Verb:  verb,
		Path:  u.name,
		Cause: syscall.EIO,
	}
}

// TestPodsUnread: without an answer of the container engine, and without kubelet's folders of pods,
// nothing says that no pod runs, so the machine stays in its cluster.
func TestPodsUnread(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	check.OK(t, RefuseWhilePodsRun(t.Context(), n))
	err := RefuseWhilePodsRun(t.Context(), unreadable{n, "/var/lib/kubelet/pods"})
	check.That(t, errors.Is(err, syscall.EIO), "%v", err)
}

// TestCordonUnread: a cordon of gpuadm's own that cannot be ruled out is an error, since the Node
// would stay cordoned.
func TestCordonUnread(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	s := new(Session)
	check.OK(t, s.Uncordon(t.Context(), n, nil))
	err := s.Uncordon(t.Context(), unreadable{n, mayBeCordoned}, nil)
	check.That(t, errors.Is(err, syscall.EIO), "%v", err)
}

// TestAccountUnread: an account's kubeconfig that cannot be looked at is not gone.
func TestAccountUnread(t *testing.T) {
	a := apiFixture(t, apiSpec)
	id := *a.accountIdentity()
	why := a.shared.askAccount(a.ctx, unreadable{a.Node, apiAccount}, id)
	check.That(t, !strings.Contains(why, "is gone"), "undo leaves parts of the Node: %s", why)
}
