// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// Kubelet keeps certificate and key in one file and goes by a link to it, which it replaces when it renews them; it refuses to
// where the link is a file (client-go, util/certificate/certificate_store.go).
const (
	currentCertificate = kubeletPKI + "/kubelet-client-current.pem"
	firstCertificate   = kubeletPKI + "/kubelet-client-joined.pem"
	certificatePrefix  = "kubelet-client-"

	// joinKey waits for its certificate in our own folder, where undo of anything else leaves it: an approval may take a day.
	joinKey = converge.Home + "/join.key"
)

// certificate is the node's client certificate with its key. Its state is whose it is, "system:node:NAME", and no part of it.
// It is made once and renewed by kubelet; made anew only when it has run out.
type certificate struct {
	path string
	join *tokenJoin // nil when built again for undo: it can be removed, not made

	*verdict
}

// verdict is why the certificate cannot be had, as far as it was found out before anything was touched.
type verdict struct {
	mu  sync.Mutex
	err error
}

const (
	ranOut  = ", which has run out"
	unclear = "unreadable"
)

// want wants the certificate of this node.
func (c certificate) want() converge.Want {
	c.verdict = &verdict{}
	whose := "system:node:" + c.join.name
	// Registration says so too, but kubelet may register the node before gpuadm looks, or have done so before.
	left := nodeLeft(c.join.name)
	return converge.Want{Thing: c, AsFound: true, Why: "the cluster knows the node by it", Leaves: left, To: func(found converge.State) (converge.State, error) {
		user, _ := strings.CutSuffix(string(found), ranOut)
		switch {
		case user == whose && string(found) == whose:
			return found, nil
		case found != "" && user != whose && user != unclear:
			return "", &converge.Trouble{
				What:    fmt.Sprintf("cannot join as %s: this machine holds the certificate of %s", c.join.name, strings.TrimPrefix(user, "system:node:")),
				Because: []string{"a node cannot be given another name"},
				Try:     []string{fmt.Sprintf("write node_name = %q in [join]", strings.TrimPrefix(user, "system:node:")), "or gpuadm undo --to all, which takes the machine out of the cluster, then apply again"},
			}
		}
		c.verdict.mu.Lock()
		defer c.verdict.mu.Unlock()
		if c.verdict.err != nil {
			return "", c.verdict.err
		}
		return converge.State(whose), nil
	}}
}

// NewCertificate names a node's client certificate, for undo.
func NewCertificate(name string) converge.Thing { return certificate{path: name} }

func (c certificate) Kind() string { return "bootstrap" }
func (c certificate) Name() string { return c.path }

// Look reads whose certificate is there. Where one has to be asked for, it finds out whether that can go well.
func (c certificate) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := c.look(v)
	if err != nil || c.join == nil || found == converge.State("system:node:"+c.join.name) {
		return found, err
	}
	err = c.join.try(ctx, v)
	if later := (host.Later{}); errors.As(err, &later) {
		return "", later
	}
	c.verdict.mu.Lock()
	defer c.verdict.mu.Unlock()
	c.verdict.err = c.unrenewed(v, found, err)
	return found, nil
}

// unrenewed says of what keeps a node from a certificate that its last one has run out, and since when.
func (c certificate) unrenewed(v host.View, found converge.State, err error) error {
	t := (*converge.Trouble)(nil)
	user, over := strings.CutSuffix(string(found), ranOut)
	data, _ := v.ReadFile(c.path)
	list := certificates(data)
	if !over || len(list) == 0 || !errors.As(err, &t) {
		return err
	}
	why := t.What
	if none := (noToken{}); errors.As(err, &none) {
		why = "that takes a new bootstrap token, and " + none.Error()
	}
	return &converge.Trouble{
		What: fmt.Sprintf("cannot renew the certificate of node %s, which ran out on %s: %s",
			strings.TrimPrefix(user, "system:node:"), list[0].NotAfter.UTC().Format("2006-01-02 15:04 MST"), why),
		Because: append([]string{"kubelet renews a certificate by itself only while it holds: the machine was off, or cut off, for too long"}, t.Because...),
		Try:     t.Try,
		Err:     err,
	}
}

func (c certificate) look(v host.View) (converge.State, error) {
	data, err := v.ReadFile(c.path)
	if notThere(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	list := certificates(data)
	if len(list) == 0 || list[0].Subject.CommonName == "" {
		return unclear, nil
	}
	state := list[0].Subject.CommonName
	if v.Now().After(list[0].NotAfter) {
		state += ranOut
	}
	return converge.State(state), nil
}

// Breaks refuses to take the certificate away while pods run here.
func (c certificate) Breaks(ctx context.Context, v host.View, before, after converge.State) ([]string, map[string][]string, error) {
	if before == "" || after != "" {
		return nil, nil, nil
	}
	return nil, nil, podsRun(ctx, v)
}

// TakeOut is converge.Merger's: a certificate that has run out meanwhile is the one that was made.
func (c certificate) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	user, _ := strings.CutSuffix(string(found), ranOut)
	switch {
	case before == after:
		return found, nil, nil
	case user != string(after):
		return found, []string{fmt.Sprintf("%s is the certificate of %s, gpuadm had got that of %s", c.path, user, after)}, nil
	}
	return before, nil, nil
}

func (c certificate) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return c.remove(h)
	}
	if c.join == nil || to != converge.State("system:node:"+c.join.name) {
		return converge.Stays{Why: "a key is not stored, so an earlier certificate cannot be restored"}
	}
	return c.join.enter(ctx, h)
}

// remove removes all certificates that kubelet has had, and the key of a request that was not answered. The link goes first: what
// it names must not look whole while the rest is gone.
func (c certificate) remove(h host.Host) error {
	names, err := h.ReadDir(path.Dir(c.path))
	if err != nil && !notThere(err) {
		return err
	}
	all := []string{c.path}
	for _, n := range names {
		if full := path.Join(path.Dir(c.path), n); full != c.path && strings.HasPrefix(n, certificatePrefix) && strings.HasSuffix(n, ".pem") {
			all = append(all, full)
		}
	}
	for _, name := range append(all, joinKey) {
		if err := h.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// enter gets the node's certificate, makes sure that the name is free, and only then puts the certificate where kubelet finds it.
func (t *tokenJoin) enter(ctx context.Context, h host.Host) error {
	if err := t.try(ctx, h); err != nil {
		return err
	}
	token, err := t.read(h)
	if err != nil {
		return err
	}
	key, err := keptKey(h)
	if err != nil {
		return err
	}
	cert, err := t.request(ctx, h, token, key)
	if err != nil {
		return err
	}
	if err := t.nameFree(ctx, h, cert, key); err != nil {
		return err
	}
	if err := h.WriteFile(firstCertificate, together(cert, key), host.Attr{Mode: 0o600}); err != nil {
		return err
	}
	if err := h.Symlink(currentCertificate, firstCertificate); err != nil {
		return err
	}
	if err := h.Remove(joinKey); err != nil && !notThere(err) {
		return err
	}
	return nil
}

// nameFree asks, as the node we are about to be, whether the cluster has a node of this name that is another machine. A node that
// is not ready may be what an earlier machine has left; kubeadm takes over its name too.
func (t *tokenJoin) nameFree(ctx context.Context, v host.View, cert, key []byte) error {
	c, err := kube.WithPair(v, t.server, t.roots, cert, key, t.via)
	if err != nil {
		return err
	}
	there, err := c.Node(ctx, t.name)
	if errors.Is(err, kube.Missing) {
		return nil
	} else if err != nil {
		return t.explain(err)
	}
	is := there.Status.NodeInfo
	ours := systemUUID(v)
	sameMachine := is.MachineID == "" || t.machineID == "" || is.MachineID == t.machineID
	sameBoard := is.SystemUUID == "" || ours == "" || strings.EqualFold(is.SystemUUID, ours)
	if sameMachine && sameBoard || unready(there, "") != "" {
		return nil
	}
	return &converge.Trouble{
		What: fmt.Sprintf("cannot join as %s: another machine is that node, and is ready", t.name),
		Because: []string{
			fmt.Sprintf("the node's machine id is %s and its system UUID %s; ours are %s and %s", is.MachineID, is.SystemUUID, t.machineID, ours),
			"two machines of one name would take turns at being it; nothing of the node was changed",
		},
		Try: []string{
			`write another node_name in [join], or hostnamectl set-hostname NAME`,
			fmt.Sprintf("if it was this machine before it was installed anew: kubectl delete node %s", t.name),
		},
	}
}

// systemUUID is the board's, as kubelet tells it: cadvisor, utils/sysfs, GetSystemUUID.
func systemUUID(v host.View) string {
	for _, name := range []string{"/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid"} {
		if data, err := v.ReadFile(name); err == nil {
			return strings.TrimSpace(strings.TrimRight(string(data), "\x00"))
		}
	}
	return ""
}

// keptKey is the key that a certificate is asked for with. It is kept until the certificate is there: the next run goes on with
// the same request, which somebody may be about to approve.
func keptKey(h host.Host) ([]byte, error) {
	data, err := h.ReadFile(joinKey)
	if err == nil && privateKey(data) != nil {
		return data, nil
	} else if err != nil && !notThere(err) {
		return nil, err
	}
	if data, err = newKey(); err != nil {
		return nil, err
	}
	return data, h.WriteFile(joinKey, data, host.Attr{Mode: 0o600})
}

// together are a certificate and its key as one file has them.
func together(cert, key []byte) []byte {
	return slices.Concat(bytes.TrimRight(cert, "\r\n"), []byte("\n"), key) // a signer may leave the last line open
}

// fits says whether a certificate is what was asked for.
func fits(cert, key []byte, whose string) error {
	list := certificates(cert)
	if len(list) == 0 {
		return errors.New("it is no certificate")
	}
	leaf := list[0]
	_, err := tls.X509KeyPair(cert, key)
	client := false
	for _, u := range leaf.ExtKeyUsage {
		client = client || u == x509.ExtKeyUsageClientAuth
	}
	switch {
	case leaf.Subject.CommonName != whose:
		return fmt.Errorf("it is of %s", oneLine(leaf.Subject.String()))
	case err != nil:
		return errors.New("it is of another key")
	case !client:
		return errors.New("it may not be used to log in")
	}
	return nil
}

// pemOf writes one block.
func pemOf(kind string, data []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
}
