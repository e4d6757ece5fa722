// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// join is what the things of one join share: which servers they ask, and the answers.
type join struct {
	server, caFile, pin, tokenFile string
	name, machineID                string
	kubelet                        string // its version, "" where it is not known
	ca                             []byte // ca_file's bytes
	via                            host.Via

	sleep func(context.Context, time.Duration) error

	tried     askOnce
	unchecked bool // the token may not tell whether the name is free
	silence   *node.Silence
	roots     []byte // whom the API server's certificate must come from, once that was found out
}

func newJoin(se *node.Session, s spec.Spec, f facts.Facts) *join {
	return &join{
		server: strings.TrimSuffix(s.Join.Server, "/"), caFile: s.Join.CAFile, pin: s.Join.CAPin, tokenFile: s.Join.TokenFile,
		name: method.NodeName(s, f), machineID: f.MachineID, ca: f.Files[s.Join.CAFile], via: method.Via(s), kubelet: f.Kubelet.Version, sleep: host.Pause, silence: &se.Silence,
	}
}

// A bootstrapToken is a bootstrap token: https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
// Its parts are unexported and it prints as its id, which is no secret.
type bootstrapToken struct{ id, secret string }

func (t bootstrapToken) String() string   { return t.id + "." + mask.Mark }
func (t bootstrapToken) GoString() string { return t.String() }

// bearer is the token as a request carries it.
func (t bootstrapToken) bearer() string { return t.id + "." + t.secret }

// noToken says that there is no file with a token.
type noToken struct{ file string }

func (n noToken) Error() string { return n.file + " is not there" }

// read reads the token's file. No error tells what is in it.
func (t *join) read(v host.View) (bootstrapToken, error) {
	refuse := func(problem string, try ...string) (bootstrapToken, error) {
		return bootstrapToken{}, &trouble.Error{What: fmt.Sprintf("cannot use the token in %s: %s", t.tokenFile, problem), Try: try}
	}
	again := t.another()
	i, err := v.Lstat(t.tokenFile)
	switch {
	case host.NotExist(err):
		return bootstrapToken{}, &trouble.Error{
			What: fmt.Sprintf("cannot join: there is no bootstrap token, %s is not there", t.tokenFile), Try: []string{again}, Err: noToken{t.tokenFile},
		}
	case err != nil:
		return bootstrapToken{}, err
	case i.Mode.Type() == fs.ModeSymlink || !i.Mode.IsRegular():
		return refuse("it is "+host.TypeName(i.Mode)+", and must be a file", again)
	case i.Mode.Perm()&0o077 != 0 || i.UID != 0:
		return refuse(fmt.Sprintf("others than root may read it (mode %04o, owner %d)", i.Mode.Perm(), i.UID),
			"chown root:root "+t.tokenFile+"; chmod 0600 "+t.tokenFile, "and if others have used this machine meanwhile, take another token: "+again)
	case i.Size > 4096:
		return refuse("it is too large for a token", again)
	}
	data, err := v.ReadFile(t.tokenFile)
	if err != nil {
		return bootstrapToken{}, err
	}
	text := strings.TrimSpace(string(data))
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(text) {
		return refuse("what is in it has not the form of one: 6 characters, a dot, 16 characters, all lower-case letters and digits", again)
	}
	id, secret, _ := strings.Cut(text, ".")
	return bootstrapToken{id, secret}, nil
}

// try finds out, once, whether the join can go well, without changing anything anywhere: whom to trust, whether the token is
// good, and whether the clocks agree.
func (t *join) try(ctx context.Context, v host.View) error {
	return t.tried.do(func() error {
		if !v.Live() {
			return host.FirstBoot
		}
		token, err := t.read(v)
		if err != nil {
			return err
		}
		if data, err := v.ReadFile(bootstrapKubeconfig); err == nil && !bytes.HasPrefix(data, []byte(kubelet.Written)) {
			return &trouble.Error{
				What: fmt.Sprintf("cannot join: %s is there, and another program has written it", bootstrapKubeconfig),
				Try:  []string{"if this machine was to join otherwise, undo that first (kubeadm reset), or remove the file; then apply again"},
			}
		}
		return t.silence.Ask(ctx, v, func(ctx context.Context) error {
			if t.roots, err = t.trust(ctx, v, token); err != nil {
				return err
			}
			return t.allowed(ctx, v, token)
		})
	})
}

// authority is what the file with the cluster's CA shall hold.
func (t *join) authority(ctx context.Context, v host.View, found []byte) ([]byte, error) {
	foreign := func(because string) error {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot write %s: another cluster's CA lies there", kubelet.ClusterCA),
			Because: []string{because},
			Try:     []string{"if this machine was a node of another cluster, take it out of that first (kubeadm reset), then apply again"},
		}
	}
	if found != nil {
		switch {
		case t.ca != nil && sameAuthorities(found, t.ca):
		case t.ca != nil && shareAuthority(found, t.ca): // a cluster that changes its CA has both for a while
			return t.givenAuthority()
		case t.ca != nil:
			return nil, foreign(fmt.Sprintf("wanted that of %s, %s; found %s", t.caFile, strings.Join(pins(t.ca), ", "), strings.Join(pins(found), ", ")))
		case t.pin != "" && !slices.Contains(pins(found), t.pin):
			return nil, foreign(fmt.Sprintf("wanted %s, found %s", t.pin, strings.Join(pins(found), ", ")))
		}
		return found, nil
	}
	if t.caFile != "" { // node.toml names it: no server needs to say it
		given, err := t.givenAuthority()
		return given, t.elsewhere(v, err)
	}
	if err := t.try(ctx, v); err != nil {
		return nil, t.elsewhere(v, err)
	}
	return t.roots, nil
}

// elsewhere makes a Later of what the certificate's own line in the plan says already: once is enough.
func (t *join) elsewhere(v host.View, err error) error {
	if _, there := v.Stat(kubelet.CurrentCertificate); err == nil || errors.As(err, &host.Later{}) || !host.NotExist(there) {
		return err
	}
	return host.Later{Until: "once the cluster was asked"}
}

// givenAuthority is ca_file, checked.
func (t *join) givenAuthority() ([]byte, error) {
	switch {
	case t.ca == nil:
		return nil, &trouble.Error{What: fmt.Sprintf("cannot read %s: it is not there", t.caFile), Try: []string{"copy /etc/kubernetes/pki/ca.crt of the control plane there, or write ca_pin in [join]"}}
	case len(pins(t.ca)) == 0:
		return nil, &trouble.Error{What: fmt.Sprintf("cannot use %s: it holds no certificate in PEM form", t.caFile), Try: []string{"copy /etc/kubernetes/pki/ca.crt of the control plane there"}}
	case t.pin != "" && !pinned(t.ca, t.pin):
		return nil, &trouble.Error{
			What:    fmt.Sprintf("cannot trust %s: it is not what ca_pin says", t.caFile),
			Because: []string{fmt.Sprintf("ca_pin is %s, the file is %s", t.pin, strings.Join(pins(t.ca), ", "))},
			Try:     []string{"find out which of the two is right, on the control plane, and take the other one out of [join]"},
		}
	}
	return t.ca, nil
}

// dns is what kubeadm has noted for all kubelets of the cluster about its DNS. A bootstrap token may read it where kubeadm has
// made the cluster (kubernetes, cmd/kubeadm/app/phases/kubelet/config.go, createConfigMapRBACRules).
func (t *join) dns(ctx context.Context, v host.View) (map[string]any, error) {
	if err := t.try(ctx, v); err != nil {
		return nil, t.elsewhere(v, err)
	}
	token, err := t.read(v)
	if err != nil {
		return nil, err
	}
	var noted map[string]string
	err = t.silence.Ask(ctx, v, func(ctx context.Context) (err error) {
		noted, err = configMap(ctx, t.client(v, token), "kube-system", "kubelet-config")
		return err
	})
	var is map[string]any
	if err == nil && yaml.Unmarshal([]byte(noted["kubelet"]), &is) == nil && is["clusterDNS"] != nil {
		told := map[string]any{}
		for _, key := range kubelet.DNSKeys() {
			if is[key] != nil {
				told[key] = is[key]
			}
		}
		return told, nil
	}
	if err != nil && !refused(err) {
		return nil, t.explain(err)
	}
	return nil, &trouble.Error{
		What:    "cannot find out the address of the cluster's DNS, and pods would resolve no names",
		Because: []string{"the ConfigMap kubelet-config in kube-system, in which kubeadm notes it, is not there or not for us to read"},
		Try:     []string{`write cluster_dns = ["10.96.0.10"] in [join], with the address that kubectl -n kube-system get service kube-dns shows`},
	}
}

// entered is a Later while the node has no certificate and the API server is silent: a kubelet that was started then would
// register nowhere, and we would wait for it.
func (t *join) entered(ctx context.Context, v host.View) error {
	if t == nil {
		return nil
	}
	for _, name := range []string{kubelet.CurrentCertificate, bootstrapKubeconfig} {
		if _, err := v.Stat(name); !host.NotExist(err) {
			return nil
		}
	}
	if err := t.try(ctx, v); trouble.Passes(err) {
		return t.elsewhere(v, err)
	}
	return nil
}

// askOnce keeps the answer to a question that several things of a stage ask while it is planned.
type askOnce struct {
	mu   sync.Mutex
	done bool
	err  error
}

func (o *askOnce) do(ask func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		o.done, o.err = true, ask()
	}
	return o.err
}
