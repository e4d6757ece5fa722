// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// kubeconfig is what we need of one: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
// clientcmd's own loader follows YAML aliases, by which a small file grows without end, and its errors repeat the file's content.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string  `yaml:"name"`
		Context pairing `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	} `yaml:"users"`
}

type pairing struct {
	Cluster string `yaml:"cluster"`
	User    string `yaml:"user"`
}

type cluster struct {
	Server  string `yaml:"server"`
	CAFile  string `yaml:"certificate-authority"`
	CA      string `yaml:"certificate-authority-data"`
	Blind   bool   `yaml:"insecure-skip-tls-verify"`
	TLSName string `yaml:"tls-server-name"`
	Proxy   string `yaml:"proxy-url"`
}

type user struct {
	CertFile     string       `yaml:"client-certificate"`
	Cert         string       `yaml:"client-certificate-data"`
	KeyFile      string       `yaml:"client-key"`
	Key          string       `yaml:"client-key-data"`
	Token        string       `yaml:"token"`
	TokenFile    string       `yaml:"tokenFile"`
	As           string       `yaml:"as"`
	Username     string       `yaml:"username"`
	Password     string       `yaml:"password"`
	AuthProvider *struct{}    `yaml:"auth-provider"`
	Exec         *execSetting `yaml:"exec"`
}

type execSetting struct {
	APIVersion string   `yaml:"apiVersion"`
	Command    string   `yaml:"command"`
	Args       []string `yaml:"args"`
	Env        []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	InstallHint string `yaml:"installHint"`
	ClusterInfo bool   `yaml:"provideClusterInfo"`
	Mode        string `yaml:"interactiveMode"`
}

// ofKubeconfig reads a kubeconfig on the machine.
func ofKubeconfig(v host.View, name string) (setting, error) {
	e := &Error{Verb: "use", What: "kubeconfig " + name, Why: Broken}
	text, err := small(v, name)
	switch {
	case name == "":
		e.What, e.Cause = "a kubeconfig", errors.New("none is named")
		return setting{}, e
	case errors.Is(err, fs.ErrNotExist):
		e.Why, e.Cause = Missing, errors.New("not found (yet): kubelet or the tool that joins the machine writes it")
		return setting{}, e
	case errors.Is(err, fs.ErrPermission):
		e.Cause, e.Try = err, []string{"run gpuadm as root"}
		return setting{}, e
	case err != nil:
		e.Cause = err
		return setting{}, e
	}
	s, err := parse(text, path.Dir(name))
	if err == nil {
		err = s.load(v)
	}
	if err != nil {
		e.Cause = err
		return setting{}, e
	}
	s.from, s.setting.login.view = "kubeconfig "+name, v
	s.setting.from = s.from
	if s.login.about == "" {
		s.login.about = "no credentials: kubeconfig " + name + " has none for its current-context"
	}
	return s.setting, nil
}

// parsed is a setting whose certificate authority may still lie in a file.
type parsed struct {
	setting
	caFile string
	from   string
}

// load reads the certificate authority.
func (p *parsed) load(v host.View) (err error) {
	if p.roots == nil && p.caFile != "" {
		p.roots, err = small(v, p.caFile)
		if err == nil && len(p.roots) == 0 {
			err = fmt.Errorf("%s is empty", p.caFile)
		}
	}
	return err
}

// parse reads a kubeconfig's text; names of files are relative to the kubeconfig's folder. Pure. Errors repeat no values but names.
func parse(text []byte, folder string) (parsed, error) {
	var p parsed
	var k kubeconfig
	if len(text) > maxSmall {
		return p, fmt.Errorf("it is larger than %d MiB", maxSmall>>20)
	}
	if err := decode(text, &k); err != nil {
		return p, err
	}
	cl, u, err := k.current()
	if err != nil {
		return p, err
	}
	at := func(name string) string {
		if name == "" || path.IsAbs(name) {
			return name
		}
		return path.Join(folder, name)
	}
	if p.setting, err = cl.setting(); err != nil {
		return p, err
	}
	p.caFile = at(cl.CAFile)
	p.login, err = u.login(at)
	return p, err
}

// decode reads YAML into the type, without aliases.
func decode(text []byte, k *kubeconfig) error {
	var root yaml.Node
	err := yaml.Unmarshal(text, &root)
	switch {
	case err != nil:
		return errors.New("it is no YAML" + lineOf(err))
	case aliased(&root):
		return errors.New("it uses YAML aliases (&name, *name), which are not read here")
	case len(root.Content) == 0:
		return errors.New("it is empty")
	}
	if err := root.Decode(k); err != nil {
		return errors.New("it does not have the form of a kubeconfig" + lineOf(err))
	}
	return nil
}

// lineOf takes the line's number out of an error: the rest of it may repeat a secret.
func lineOf(err error) string {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	if !ok || digits == 0 || digits > 9 {
		return ""
	}
	return ": line " + rest[:digits]
}

func aliased(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		return true
	}
	for _, below := range n.Content {
		if aliased(below) {
			return true
		}
	}
	return false
}

// current finds the cluster and the user of the current context.
func (k kubeconfig) current() (cl cluster, u user, err error) {
	if k.Current == "" {
		return cl, u, errors.New("it has no current-context")
	}
	var names []string
	var pair *pairing
	for _, c := range k.Contexts {
		names = append(names, clean(c.Name, 60))
		if c.Name == k.Current && pair == nil {
			pair = &c.Context
		}
	}
	if pair == nil {
		there := "it has none"
		if names != nil {
			there = "there are " + clean(strings.Join(names, ", "), 200)
		}
		return cl, u, fmt.Errorf("its current-context %q is not among its contexts: %s", clean(k.Current, 60), there)
	}
	found := false
	for _, c := range k.Clusters {
		if c.Name == pair.Cluster && !found {
			cl, found = c.Cluster, true
		}
	}
	if !found {
		return cl, u, fmt.Errorf("its context %q names cluster %q, which it does not have", clean(k.Current, 60), clean(pair.Cluster, 60))
	}
	if found = pair.User == ""; found {
		return cl, u, nil
	}
	for _, c := range k.Users {
		if c.Name == pair.User && !found {
			u, found = c.User, true
		}
	}
	if !found {
		return cl, u, fmt.Errorf("its context %q names user %q, which it does not have", clean(k.Current, 60), clean(pair.User, 60))
	}
	return cl, u, nil
}

// setting is what a cluster says.
func (cl cluster) setting() (s setting, err error) {
	switch {
	case cl.Blind:
		return s, errors.New("it has insecure-skip-tls-verify, so any host could answer in the API server's place: give it certificate-authority instead")
	case cl.TLSName != "":
		return s, errors.New("it has tls-server-name, which is not supported")
	}
	s.server = cl.Server
	if cl.CA != "" {
		if s.roots, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(cl.CA), "")); err != nil {
			return s, errors.New("its certificate-authority-data is not base64")
		}
	}
	if cl.Proxy != "" {
		s.via.HTTP, s.via.HTTPS = cl.Proxy, cl.Proxy
	}
	return s, nil
}

// login is what a user says. at finds files.
func (u user) login(at func(string) string) (*login, error) {
	l := &login{}
	var err error
	switch {
	case u.Username != "" || u.Password != "":
		return nil, errors.New("it has a user name and a password, which Kubernetes has not taken since 1.19")
	case u.AuthProvider != nil:
		return nil, errors.New("it has an auth-provider, which Kubernetes has not known since 1.26: use exec instead")
	case u.As != "":
		return nil, errors.New("it impersonates another user (as), which is not supported")
	}
	if u.Cert != "" {
		l.certFile = "client-certificate-data"
		if l.certPEM, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(u.Cert), "")); err != nil {
			return nil, errors.New("its client-certificate-data is not base64")
		}
	} else {
		l.certFile = at(u.CertFile)
	}
	if u.Key != "" {
		if l.keyPEM, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(u.Key), "")); err != nil {
			return nil, errors.New("its client-key-data is not base64")
		}
	} else {
		l.keyFile = at(u.KeyFile)
	}
	if hasCert, hasKey := l.certFile != "", l.keyPEM != nil || l.keyFile != ""; hasCert != hasKey {
		return nil, errors.New("it has only one of client-certificate and client-key")
	}
	l.tokenFile = at(u.TokenFile)
	if l.tokenFile == "" { // a file wins, as in client-go: it is the one that rotates
		l.token = u.Token
	}
	if u.Exec != nil {
		if l.exec, err = u.Exec.plugin(at); err != nil {
			return nil, err
		}
	}
	switch {
	case l.certPEM == nil && l.certFile != "":
		l.about = "the client certificate " + l.certFile
	case l.certPEM != nil:
		l.about = "the client certificate in the kubeconfig"
	case l.tokenFile != "":
		l.about = "the token in " + l.tokenFile
	case l.token != "":
		l.about = "the token in the kubeconfig"
	case l.exec != nil:
		l.about = "what " + l.exec.argv[0] + " gives"
	}
	return l, nil
}
