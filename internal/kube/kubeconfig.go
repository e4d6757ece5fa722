// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// kubeconfig has the fields that gpuadm reads:
// https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ gpuadm does not use clientcmd's
// loader, whose errors quote the file's content.
type kubeconfig struct {
	Current  string         `yaml:"current-context"`
	Contexts []contextEntry `yaml:"contexts"`
	Clusters []clusterEntry `yaml:"clusters"`
	Users    []userEntry    `yaml:"users"`
}

type contextEntry struct {
	Name    string `yaml:"name"`
	Context struct {
		Cluster string `yaml:"cluster"`
		User    string `yaml:"user"`
	} `yaml:"context"`
}

type clusterEntry struct {
	Name    string  `yaml:"name"`
	Cluster cluster `yaml:"cluster"`
}

type userEntry struct {
	Name string      `yaml:"name"`
	User Credentials `yaml:"user"`
}

type cluster struct {
	Server  string `yaml:"server"`
	CAFile  string `yaml:"certificate-authority"`
	CA      string `yaml:"certificate-authority-data"`
	Blind   bool   `yaml:"insecure-skip-tls-verify"`
	TLSName string `yaml:"tls-server-name"`
	Proxy   string `yaml:"proxy-url"`
}

// Credentials are what a kubeconfig says of a user.
type Credentials struct {
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
func ofKubeconfig(v host.View, name string, judged bool) (setting, error) {
	s, f := setting{}, &fault{why: Broken}
	text, err := small(v, name)
	switch {
	case name == "":
		f.cause = errors.New("none is named")
		return s, f.to("use", "a kubeconfig")
	case errors.Is(err, fs.ErrNotExist):
		f.why, err = Missing, errors.New("not found (yet): kubelet or the tool that joins the machine writes it")
	case errors.Is(err, fs.ErrPermission):
		f.try = []string{"run gpuadm as root"}
	case err == nil:
		if s, err = parse(text, path.Dir(name)); err == nil && judged {
			err = v.Trusted(s.files()...)
		}
	}
	if err == nil && s.roots == nil && s.caFile != "" {
		if s.roots, err = small(v, s.caFile); err == nil && len(s.roots) == 0 {
			err = fmt.Errorf("%s is empty", s.caFile)
		}
	}
	if err != nil {
		f.cause = err
		return setting{}, f.to("use", "kubeconfig "+name)
	}
	s.from, s.login.view = "kubeconfig "+name, v
	s.login.about = cmp.Or(s.login.about, "no credentials: kubeconfig "+name+" has none for its current-context")
	return s, nil
}

// files returns the files that a kubeconfig names, an exec plugin's program included.
func (s setting) files() (names []string) {
	all := []string{s.caFile, s.login.certFile, s.login.keyFile, s.login.tokenFile}
	if s.login.exec != nil {
		all = append(all, s.login.exec.argv[0])
	}
	for _, name := range all {
		if path.IsAbs(name) {
			names = append(names, name)
		}
	}
	return names
}

// parse reads a kubeconfig's text; names of files are relative to the kubeconfig's folder. It is
// pure. Its errors quote names, and no other values.
func parse(text []byte, folder string) (s setting, err error) {
	var k kubeconfig
	if len(text) > maxSmall {
		return s, fmt.Errorf("it is larger than %d MiB", maxSmall>>20)
	}
	switch err := yaml.Unmarshal(text, &k); {
	case errors.As(err, new(*yaml.TypeError)):
		return s, errors.New("it does not have the form of a kubeconfig" + whichLine)
	case err != nil:
		return s, errors.New("it is no YAML" + whichLine)
	}
	cl, u, err := k.current()
	if err != nil {
		return s, err
	}
	at := func(name string) string {
		if name == "" || path.IsAbs(name) {
			return name
		}
		return path.Join(folder, name)
	}
	if s, err = cl.setting(); err != nil {
		return s, err
	}
	s.caFile = at(cl.CAFile)
	s.login, err = u.login(at)
	return s, err
}

// CredentialsIn returns those of a kubeconfig's current context, whatever its cluster; none if it
// cannot be read.
func CredentialsIn(text []byte) Credentials {
	var k kubeconfig
	if yaml.Unmarshal(text, &k) != nil {
		return Credentials{}
	}
	_, u, _ := k.current()
	return u
}

// whichLine replaces the sentence of the YAML library, which may repeat a secret.
const whichLine = "; kubectl config view --kubeconfig says where"

// current finds the cluster and the user of the current context.
func (k kubeconfig) current() (cl cluster, u Credentials, err error) {
	if k.Current == "" {
		return cl, u, errors.New("it has no current-context")
	}
	var names []string
	for _, c := range k.Contexts {
		names = append(names, clean(c.Name, 60))
	}
	i := slices.IndexFunc(k.Contexts, func(c contextEntry) bool { return c.Name == k.Current })
	if i < 0 {
		there := "it has none"
		if names != nil {
			there = "there are " + clean(strings.Join(names, ", "), 200)
		}
		return cl, u, fmt.Errorf("its current-context %q is not among its contexts: %s", clean(k.Current, 60), there)
	}
	pair := k.Contexts[i].Context
	lacks := func(kind, name string) error {
		return fmt.Errorf("its context %q names %s %q, which it does not have", clean(k.Current, 60), kind, clean(name, 60))
	}
	of := slices.IndexFunc(k.Users, func(c userEntry) bool { return c.Name == pair.User })
	if of >= 0 {
		u = k.Users[of].User
	}
	if i = slices.IndexFunc(k.Clusters, func(c clusterEntry) bool { return c.Name == pair.Cluster }); i < 0 {
		return cl, u, lacks("cluster", pair.Cluster)
	}
	if cl = k.Clusters[i].Cluster; of < 0 && pair.User != "" {
		return cl, u, lacks("user", pair.User)
	}
	return cl, u, nil
}

// unpacked decodes a key's base64; nil for "".
func unpacked(key, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, errors.New("its " + key + " is not base64")
	}
	return data, nil
}

// setting returns the settings of a cluster.
func (cl cluster) setting() (s setting, err error) {
	switch {
	case cl.Blind:
		return s, errors.New("it has insecure-skip-tls-verify, so any host could answer in the API server's place: give it certificate-authority instead")
	case cl.TLSName != "":
		return s, errors.New("it has tls-server-name, which is not supported")
	}
	s.server = cl.Server
	if s.roots, err = unpacked("certificate-authority-data", cl.CA); err != nil {
		return s, err
	}
	if cl.Proxy != "" {
		s.via.HTTP, s.via.HTTPS = cl.Proxy, cl.Proxy
	}
	return s, nil
}

// login returns the credentials of a user. at resolves names of files.
func (u Credentials) login(at func(string) string) (*login, error) {
	l := &login{}
	var err error
	switch {
	case u.Username != "" || u.Password != "":
		return nil, errors.New("it has a user name and a password, which Kubernetes has not accepted since 1.19")
	case u.AuthProvider != nil:
		return nil, errors.New("it has an auth-provider, which Kubernetes has not known since 1.26: use exec instead")
	case u.As != "":
		return nil, errors.New("it impersonates another user (as), which is not supported")
	}
	if l.certPEM, err = unpacked("client-certificate-data", u.Cert); err != nil {
		return nil, err
	}
	if l.keyPEM, err = unpacked("client-key-data", u.Key); err != nil {
		return nil, err
	}
	if l.certFile = at(u.CertFile); u.Cert != "" {
		l.certFile = "client-certificate-data"
	}
	if u.Key == "" {
		l.keyFile = at(u.KeyFile)
	}
	if hasCert, hasKey := l.certFile != "", l.keyPEM != nil || l.keyFile != ""; hasCert != hasKey {
		return nil, errors.New("it has only one of client-certificate and client-key")
	}
	l.tokenFile = at(u.TokenFile)
	if l.tokenFile == "" { // a file wins, as in client-go, since it is rotated
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
